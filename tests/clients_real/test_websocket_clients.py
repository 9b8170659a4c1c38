"""Plain WebSocket clients with ten lines of code: the websockets package and websocket-client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.sync.client import connect

from ..gateways.fakes import PIECES, serve

pytestmark = pytest.mark.anyio


def with_websockets(url: str) -> str:
    with connect(url, proxy=None) as ws:
        ws.send(json.dumps({"type": "generate", "id": "1", "prompt": "Hi", "max_tokens": 5}))
        text = ""
        for raw in ws:
            frame = json.loads(raw)
            if frame["type"] == "delta":
                text += frame["text"]
            elif frame["type"] in ("done", "error"):
                break
        return text


def with_websocket_client(url: str) -> str:
    websocket: Any = pytest.importorskip("websocket")
    ws = websocket.create_connection(url)
    ws.send(json.dumps({"type": "generate", "id": "1", "prompt": "Hi", "max_tokens": 5}))
    text = ""
    while (frame := json.loads(ws.recv()))["type"] not in ("done", "error"):
        text += frame["text"] if frame["type"] == "delta" else ""
    ws.close()
    return text


@pytest.mark.parametrize("client", [with_websockets, with_websocket_client])
async def test_ten_lines_are_enough(client: Any) -> None:
    async with serve() as served:
        assert await asyncio.to_thread(client, served.url) == "".join(PIECES)
