"""Plain WebSocket clients with ten lines of code: the websockets package, old and new, and websocket-client."""

from __future__ import annotations

import pytest

from ..gateways.fakes import PIECES, serve
from .environment import need, report, report_here

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
WHOLE = "".join(PIECES)


async def test_websockets_17() -> None:
    async with serve() as served:
        seen = await report_here("plain_websockets.py", served.url)
    assert (seen["blocking"], seen["asynchronous"], seen["version"][:3]) == (WHOLE, WHOLE, "17.")


async def test_websockets_13() -> None:
    folder = need("websockets13")
    async with serve() as served:
        seen = await report_here("plain_websockets.py", served.url, PYTHONPATH=str(folder))
    assert (seen["blocking"], seen["asynchronous"], seen["version"][:3]) == (WHOLE, WHOLE, "13.")


async def test_websocket_client() -> None:
    async with serve() as served:
        assert await report("websocket_client.py", served.url) == {"text": WHOLE}
