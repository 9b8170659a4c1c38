"""A page in headless Chromium, driven over its DevTools protocol (JSON over a WebSocket)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
START_S = 60  # a cold start on a busy machine


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._numbers = socket, itertools.count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of one command; events that come meanwhile are skipped."""
        number = next(self._numbers)
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(await self._socket.recv())
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is awaited."""
        result = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def visit(self, url: str) -> None:
        """Go there and wait until it is loaded."""
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(START_S):
            while await self.evaluate("location.href + document.readyState") != url + "complete":
                await asyncio.sleep(0.05)

    async def until_title(self, *titles: str) -> str:
        """Wait for the page to call itself one of these."""
        async with asyncio.timeout(START_S):
            while (title := await self.evaluate("document.title")) not in titles:
                await asyncio.sleep(0.05)
        return str(title)


@contextlib.asynccontextmanager
async def open_page(browser: str, url: str) -> AsyncIterator[Page]:
    """``url`` in a browser of its own that has no profile and is gone afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            async with asyncio.timeout(START_S):
                address = await _devtools(Path(profile) / "DevToolsActivePort")
            async with connect(address, proxy=None, max_size=None) as socket:
                root = Page(socket)
                target = (await root.call("Target.createTarget", url=url))["targetId"]
                base = address.partition("/devtools")[0]
                async with connect(f"{base}/devtools/page/{target}", proxy=None, max_size=None) as tab:
                    yield Page(tab)
                await root.call("Browser.close")
            await asyncio.wait_for(process.wait(), 20)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _devtools(file: Path) -> str:
    """Where the browser listens, once it has written it down."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            port, _, path = (await asyncio.to_thread(file.read_text)).partition("\n")
            if path:
                return f"ws://127.0.0.1:{port}{path.strip()}"
        await asyncio.sleep(0.05)
