"""The examples run as they are: Python, the client library, Node and a browser where these are installed."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..gateways.fakes import PIECES, Served, serve

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
EXAMPLES = Path(__file__).parents[2] / "examples" / "clients"
EXPECTED = "".join(PIECES[number % len(PIECES)] for number in range(16))


async def run(served: Served, *command: str) -> str:
    """Standard output of a command that must succeed."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return out.decode()


@pytest.mark.parametrize("name", ["stream.py", "resume.py"])
async def test_python(name: str) -> None:
    async with serve() as served:
        assert await run(served, sys.executable, str(EXAMPLES / name), served.url) == EXPECTED + "\n"


def node_with_websocket() -> list[str]:
    """The command, or nothing if there is none: WebSocket came with Node 20, behind a flag at first."""
    node = shutil.which("node")
    if node is None:
        return []
    version = subprocess.run([node, "-p", "process.versions.node"], capture_output=True, check=True, text=True).stdout
    major = int(version.partition(".")[0])
    return [node] if major >= 22 else [node, "--experimental-websocket"] if major >= 20 else []


async def test_node() -> None:
    command = await asyncio.to_thread(node_with_websocket)
    if not command:
        pytest.skip("no Node with WebSocket")
    async with serve() as served:
        assert await run(served, *command, str(EXAMPLES / "stream.mjs"), served.url) == EXPECTED + "\n"


async def test_a_page_in_a_browser() -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no browser")
    async with serve(allow_origins=("null",)) as served:
        page = f"file://{EXAMPLES / 'stream.html'}?url={served.url}"
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000", "--dump-dom")
        shown = await run(served, browser, *options, page)
        assert EXPECTED in shown
