"""The examples run as they are: Python, the client library, Node, and a page in a browser."""

from __future__ import annotations

import contextlib
import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..gateways.fakes import PIECES, serve
from .browser import open_page
from .environment import EXAMPLES, ROOT, browser, node_major, run

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
EXPECTED = "".join(PIECES[number % len(PIECES)] for number in range(16))


@pytest.mark.parametrize("name", ["stream.py", "resume.py"])
async def test_python(name: str) -> None:
    async with serve() as served:
        out = await run(sys.executable, str(EXAMPLES / name), served.url, PYTHONPATH=str(ROOT / "src"))
    assert out == EXPECTED + "\n"


async def test_node() -> None:
    """WebSocket came with Node 20, behind a flag at first."""
    major = node_major()
    if major < 20:
        pytest.skip(f"Node {major} has no WebSocket")
    flags = ["--experimental-websocket"] if major < 22 else []
    async with serve() as served:
        assert await run("node", *flags, str(EXAMPLES / "stream.mjs"), served.url) == EXPECTED + "\n"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
        """Nothing."""


@contextlib.contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """The folder's files over HTTP, as `python -m http.server` gives them."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


OPENS = (
    "new Promise(r => {{ const w = new WebSocket('{url}'); w.onopen = () => r(true); w.onerror = () => r(false); }})"
)


async def test_a_page_in_a_browser() -> None:
    """H, F9: the example runs in a page of this machine; a page of another site can't even connect."""
    command = browser()
    with web_server(EXAMPLES) as site:
        async with serve() as served, open_page(command, f"{site}/stream.html?url={served.url}") as page:
            assert await page.until_title("done", "error") == "done"
            assert await page.evaluate("document.getElementById('out').textContent") == EXPECTED
            assert await page.evaluate(OPENS.format(url=served.url)) is True
            await page.visit(site.replace("127.0.0.1", "evil.localhost") + "/stream.html?url=ws://127.0.0.1:1")
            assert await page.evaluate("location.hostname") == "evil.localhost"
            assert await page.evaluate(OPENS.format(url=served.url)) is False
