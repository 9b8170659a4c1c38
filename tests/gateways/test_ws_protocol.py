"""Frames that are wrong, too large or not text, and the closes they lead to."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest
import structlog
from websockets.exceptions import ConnectionClosed

from .fakes import client_frame, collect, generate, receive, send, serve, until_closed

pytestmark = pytest.mark.anyio


async def test_bad_frames_are_answered_and_ten_in_a_row_close_1008() -> None:
    """F4, E-10: what was running gets its terminal first."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", "hold")
        for text in ["?", "[]", "{}", '{"type":"nope"}'] * 3:
            await ws.send(text)
        frames, code = await until_closed(ws)
        codes = [frame["code"] for frame in frames if frame["type"] == "error"]
        assert codes == ["invalid_json", "invalid_request", "invalid_request", "unknown_event"] * 2 + codes[:2]
        assert [frame["reason"] for frame in frames if frame["type"] == "done"] == ["cancelled"]
        assert code == 1008


async def test_unknown_field_is_refused_by_name() -> None:
    """F-01."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", temprature=1)
        error = await receive(ws)
        assert (error["id"], error["code"], error["param"]) == ("a", "unsupported_parameter", "temprature")
        assert "'temperature'" in error["message"]
        assert served.text.requests == []


async def test_binary_frame_closes_1003() -> None:
    async with serve() as served, served.client() as ws:
        await ws.send(b'{"type":"ping"}')
        assert (await until_closed(ws))[1] == 1003


async def test_invalid_utf8_closes_1007() -> None:
    """F5."""
    async with serve() as served:
        sock, data = await served.raw()
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, client_frame(b'{"type":"ping","x":"\xff\xfe"}'))
        while chunk := await loop.sock_recv(sock, 4096):
            data += chunk
        sock.close()
        assert struct.pack("!H", 1007) in data


async def test_message_limit_and_close_1009() -> None:
    """F1, F2, E-11 (scaled): up to the limit it works, one byte more closes with 1009 and a reason; others live."""
    limit = 100_000
    async with serve(max_message_bytes=limit) as served, served.client() as ws, served.client() as other:
        for size in (limit - 1, limit):
            frame = {"type": "generate", "id": "a", "prompt": "", "max_tokens": 1}
            frame["prompt"] = "x" * (size - len(json.dumps(frame)))
            await ws.send(json.dumps(frame))
            assert (await collect(ws, "a"))["a"][-1]["type"] == "done"
        await ws.send("x" * (limit + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await receive(ws)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert str(limit) in closed.value.rcvd.reason
        await generate(other, "b", max_tokens=1)
        assert (await collect(other, "b"))["b"][-1]["type"] == "done"


async def test_large_frame_is_parsed_without_stopping_the_streams() -> None:
    """E-07: frames keep their order although large ones are parsed on a thread."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "small", max_tokens=50)
        await generate(ws, "big", token_ids=[1] * 200_000, prompt="x" * 10)
        await generate(ws, "bigger", "x" * 1_000_000, max_tokens=1)
        await send(ws, type="ping", after="bigger")
        frames: list[dict[str, Any]] = []
        while sum(frame["type"] in ("done", "error", "pong") for frame in frames) < 4:
            frames.append(await receive(ws))
        types = [(frame["type"], frame.get("id")) for frame in frames]
        assert types.index(("error", "big")) < types.index(("pong", None))
        assert {("done", "small"), ("done", "bigger")} < set(types)
        assert len(served.text.requests[1].prompt or "") == 1_000_000


async def test_limits_in_the_greeting_are_the_real_ones() -> None:
    async with serve(max_message_bytes=12345) as served:
        sock, data = await served.raw()
        loop = asyncio.get_running_loop()
        while b"}" not in data or b"features" not in data:
            data += await loop.sock_recv(sock, 4096)
        sock.close()
        hello = json.loads(data[data.index(b"{") :])
        assert hello["limits"] == {
            "max_context_tokens": 2048,
            "max_message_bytes": 12345,
            "max_running": 16,
            "max_queued": 64,
            "max_id_chars": 64,
            "max_retain_s": 300,
        }
        assert hello["protocol"] == "llm.v1"


async def test_one_engine_error_inside_the_gateway_closes_1011() -> None:
    """E-10: a fault of ours is a documented close code, never a hang."""
    async with serve() as served, served.client() as ws:

        def fail(*_: object, **__: object) -> str:
            raise RuntimeError("broken on purpose")

        served.text.open = fail  # type: ignore[method-assign]
        await generate(ws, "a")
        assert (await until_closed(ws))[1] == 1011


async def test_a_close_is_answered_although_the_peer_goes_on_sending() -> None:
    """E-10: what comes behind the frame that led to the close is read and dropped, so that the handshake ends."""
    with structlog.testing.capture_logs() as lines:
        async with serve() as served, served.client() as ws:
            await ws.send(b"binary")
            for _ in range(100):
                await send(ws, type="ping")
            assert (await until_closed(ws))[1] == 1003
            await ws.wait_closed()
    assert [line["close_code"] for line in lines if line["event"] == "connection_closed"] == [1003]
