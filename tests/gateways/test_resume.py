"""Streams that outlive their connection, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from .fakes import PIECES, collect, generate, receive, send, serve

pytestmark = pytest.mark.anyio


async def begin(ws: ClientConnection, num_deltas: int = 3, **fields: Any) -> list[dict[str, Any]]:
    """Start stream "a" and read it up to its ``num_deltas``-th delta."""
    await generate(ws, "a", retain_s=30, **fields)
    frames = [await receive(ws)]
    while sum(frame["type"] == "delta" for frame in frames) < num_deltas:
        frames.append(await receive(ws))
    return frames


async def rest(ws: ClientConnection) -> list[dict[str, Any]]:
    frames = [await receive(ws)]
    while frames[-1]["type"] not in ("done", "error"):
        frames.append(await receive(ws))
    return frames


async def resume(ws: ClientConnection, token: str, after: int) -> None:
    await send(ws, type="resume", id="a", token=token, after=after)


def whole(num_tokens: int) -> str:
    return "".join(PIECES[number % len(PIECES)] for number in range(num_tokens))


async def test_e5_a_dropped_stream_goes_on_where_the_client_was() -> None:
    """E5: no gap, no repeat, the text of an undisturbed run."""
    async with serve(token_s=0.002) as served:
        async with served.client() as ws:
            frames = await begin(ws, max_tokens=100)
            ws.transport.abort()
        async with served.client() as ws:
            await resume(ws, frames[0]["resume"], frames[-1]["seq"])
            frames += await rest(ws)
        assert [frame["seq"] for frame in frames] == list(range(len(frames)))
        assert "".join(frame.get("text", "") for frame in frames) == whole(100)
        assert frames[-1]["usage"]["output"] == 100
        assert served.text.cancels == []


async def test_e5_a_stream_that_ended_meanwhile_is_complete() -> None:
    async with serve() as served:
        async with served.client() as ws:
            frames = await begin(ws, max_tokens=50)
            ws.transport.abort()
        await served.text.until_live(0)
        async with served.client() as ws:
            await resume(ws, frames[0]["resume"], -1)
            again = await rest(ws)
            assert [frame["seq"] for frame in again] == list(range(len(again)))
            assert "".join(frame.get("text", "") for frame in again) == whole(50)
            await generate(ws, "a", max_tokens=1)  # the id is free
            assert (await collect(ws, "a"))["a"][-1]["type"] == "done"


async def test_a_second_connection_steals_the_stream() -> None:
    async with serve(token_s=0.002) as served, served.client() as one, served.client() as two:
        frames = await begin(one, max_tokens=100)
        await resume(two, frames[0]["resume"], frames[-1]["seq"])
        stolen = await rest(one)
        assert (stolen[-1]["code"], stolen[-1]["id"]) == ("detached", "a")
        frames += await rest(two)
        assert "".join(frame.get("text", "") for frame in frames) == whole(100)
        await send(one, type="cancel", id="a")
        await send(one, type="ping")
        assert (await receive(one))["type"] == "pong"


async def test_without_retain_a_drop_cancels() -> None:
    """E-01: resume is off unless it was asked for."""
    async with serve() as served:
        async with served.client() as ws:
            await generate(ws, "a", max_tokens=10**6)
            assert "resume" not in await receive(ws)
            ws.transport.abort()
        await served.text.until_live(0)
        assert served.text.cancels == ["r0"]


async def test_unknown_and_expired_tokens() -> None:
    async with serve() as served:
        async with served.client() as ws:
            await resume(ws, "nobody-has-it", 0)
            error = await receive(ws)
            assert (error["code"], error["status"], error["id"], "seq" in error) == ("resume_unknown", 404, "a", False)
            await generate(ws, "a", "hold", retain_s=0.05)
            token = (await receive(ws))["resume"]
            ws.transport.abort()
        await served.text.until_live(0)  # its time was over
        async with served.client() as ws:
            await resume(ws, token, 0)
            assert (await receive(ws))["code"] == "resume_expired"
            await send(ws, type="resume", id="b", token=token, after=0)
            assert (await receive(ws))["id"] == "b"
        assert len(served.hub.shelf) == 0


async def test_the_number_of_retained_streams_is_limited() -> None:
    async with serve(max_retained_per_key=2) as served, served.client() as ws:
        for name in ("a", "b", "c"):
            await generate(ws, name, max_tokens=1, retain_s=30)
        frames = await collect(ws, "a", "b", "c")
        assert frames["c"][-1]["code"] == "rate_limited"
        assert len(served.hub.shelf) == 2
        assert served.hub.admission.requests == {}


async def test_a_cancel_after_a_resume_reaches_the_engine() -> None:
    async with serve() as served:
        async with served.client() as ws:
            frames = await begin(ws, max_tokens=10**6)
            ws.transport.abort()
        async with served.client() as ws:
            await resume(ws, frames[0]["resume"], frames[-1]["seq"])
            await send(ws, type="cancel", id="a")
            assert (await rest(ws))[-1]["reason"] == "cancelled"


async def test_a_stream_nobody_resumes_is_paused_when_its_ring_is_full_and_then_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E-08."""
    monkeypatch.setattr("mainspring.plugins.wire.llm_v1.MAX_RING_BYTES", 2000)
    async with serve(pause_max_s=0.05) as served:
        async with served.client() as ws:
            frames = await begin(ws, max_tokens=10**6)
            ws.transport.abort()
        await served.text.until_live(0)
        assert served.text.pauses == ["r0"]
        (note,) = served.port.notes("gateway.cancel")
        assert note.facts["why"] == "paused too long"
        assert served.hub.num_paused == 0
        async with served.client() as ws:
            await resume(ws, frames[0]["resume"], frames[-1]["seq"])
            frames += await rest(ws)
        assert [frame["seq"] for frame in frames] == list(range(len(frames)))
        assert frames[-1]["reason"] == "cancelled"
        assert "".join(frame.get("text", "") for frame in frames) == whole(frames[-1]["usage"]["output"])


async def test_drain_ends_retained_streams_too() -> None:
    async with serve() as served:
        async with served.client() as ws:
            await begin(ws, max_tokens=10**6)
            ws.transport.abort()
        await asyncio.sleep(0)
        assert served.text.num_live == 1
        await served.gateway.drain()
        await served.text.until_live(0)


async def ended(ws: ClientConnection, name: str) -> str:
    """A stream that has ended and could still be resumed: its token."""
    await generate(ws, name, max_tokens=3, retain_s=30)
    frames = (await collect(ws, name))[name]
    token: str = frames[0]["resume"]
    return token


async def test_a_stream_may_be_read_again_where_it_ended() -> None:
    """E5: no word of a takeover, since nobody lost anything."""
    async with serve() as served, served.client() as ws:
        token = await ended(ws, "a")
        for _ in range(2):
            await send(ws, type="resume", id="a", token=token, after=-1)
            frames = (await collect(ws, "a"))["a"]
            assert [frame["type"] for frame in frames] == ["start", "delta", "delta", "delta", "done"]


async def test_a_resume_elsewhere_does_not_end_another_stream_of_that_name() -> None:
    """E-02: the name is in use again on the first connection when its old bearer is read on a second one."""
    async with serve() as served, served.client() as one, served.client() as two:
        token = await ended(one, "a")
        await generate(one, "a", "hold", max_tokens=3)
        assert (await receive(one))["type"] == "start"
        await send(two, type="resume", id="a", token=token, after=0)
        while (await receive(two))["type"] != "done":
            pass
        await send(one, type="cancel", id="a")
        assert (await receive(one))["reason"] == "cancelled"
