"""Slow readers, many requests, old and idle connections."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from mainspring.core.messages import Control, FinishReason, Row, Started, StepPlan
from mainspring.plugins.wire import outbox

from .fakes import Served, client_frame, collect, generate, receive, send, serve, text_of, until_closed
from .test_ws_slow import parse_server_frames

pytestmark = pytest.mark.anyio


async def small_buffers(served: Served) -> tuple[socket.socket, bytes]:
    """A client whose connection holds next to nothing in the system's buffers."""
    sock, data = await served.raw(receive_buffer=4096)
    assert served.gateway._server is not None
    while not served.gateway._server.connections:
        await asyncio.sleep(0)
    for ws in served.gateway._server.connections:
        ws.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return sock, data


@pytest.mark.slow
async def test_b1_a_reader_that_stalls_pauses_its_generation_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1, B4, E-08: paused in the scheduler, resumed when it reads again; the pause is reported."""
    monkeypatch.setattr(outbox, "MAX_SOURCE_BYTES", 5000)
    async with serve(token_s=0) as served:
        sock, data = await small_buffers(served)
        loop = asyncio.get_running_loop()
        with sock:
            frame = {"type": "generate", "id": "a", "prompt": "x", "max_tokens": 6000, "return_token_ids": True}
            await loop.sock_sendall(sock, client_frame(json.dumps(frame).encode()))
            async with asyncio.timeout(20):
                while not served.text.pauses:
                    await asyncio.sleep(0.001)
            assert served.hub.num_paused == 1
            while b'"type":"done"' not in data or not data.endswith(b"}}"):
                data += await loop.sock_recv(sock, 65536)
        mine = [frame for frame in parse_server_frames(data) if frame.get("id") == "a"]
        assert [token for frame in mine for token in frame.get("tokens", ())] == list(range(6000))
        assert mine[-1]["timing"]["blocked"] > 0
        assert served.text.resumes[0] == "r0"
        assert served.hub.num_paused == 0


@pytest.mark.slow
async def test_a_request_paused_for_too_long_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """B2, E-08: the KV cache is not held for a client that does not read; the connection may live on."""
    monkeypatch.setattr(outbox, "MAX_SOURCE_BYTES", 5000)
    async with serve(token_s=0, pause_max_s=0.1) as served:
        sock, data = await small_buffers(served)
        loop = asyncio.get_running_loop()
        with sock:
            frame = {"type": "generate", "id": "a", "prompt": "x", "max_tokens": 10**9}
            await loop.sock_sendall(sock, client_frame(json.dumps(frame).encode()))
            await served.text.until_live(1)
            await served.text.until_live(0)
            while b'"type":"done"' not in data:
                data += await loop.sock_recv(sock, 65536)
        assert b'"reason":"cancelled"' in data
        (note,) = served.port.notes("gateway.cancel")
        assert note.facts["why"] == "paused too long"


async def test_more_requests_than_may_run_wait_their_turn_and_more_than_may_wait_are_refused() -> None:
    """E9: an error event tells "never started"; nothing is opened before its turn."""
    async with serve(max_running_per_connection=2, max_queued_per_connection=3) as served, served.client() as ws:
        names = [f"s{number}" for number in range(6)]
        for name in names:
            await generate(ws, name, "hold")
        (refused,) = (await collect(ws, "s5"))["s5"]
        assert (refused["code"], refused["status"], refused["retry_after_ms"]) == ("queue_full", 429, 1000)
        assert len(served.text.requests) == 2
        assert served.hub.admission.num_queued == 3
        await send(ws, type="cancel", id="s3")  # one that waits: its terminal comes at once
        (cancelled,) = (await collect(ws, "s3"))["s3"]
        assert (cancelled["reason"], cancelled["usage"]["output"]) == ("cancelled", 0)
        for name in ("s0", "s1", "s2", "s4"):
            await send(ws, type="cancel", id=name)
        ended: set[str] = set()
        while len(ended) < 4:
            frame = await receive(ws)
            if frame["type"] == "done":
                ended.add(frame["id"])
        assert served.hub.admission.num_queued == 0
        assert served.hub.admission.requests == {}


async def test_requests_that_wait_are_dropped_with_their_connection() -> None:
    """A1, A7."""
    async with serve(max_running_per_connection=1) as served:
        async with served.client() as ws:
            for name in ("a", "b", "c"):
                await generate(ws, name, "hold")
            await send(ws, type="ping")
            while (await receive(ws))["type"] != "pong":
                pass
            assert served.hub.admission.num_queued == 2
            ws.transport.abort()
        await served.text.until_live(0)
        assert len(served.text.requests) == 1
        assert (served.hub.admission.num_queued, served.hub.admission.requests) == (0, {})


async def test_a_deadline_passes_also_while_waiting() -> None:
    async with serve(max_running_per_connection=1) as served, served.client() as ws:
        await generate(ws, "a", "hold")
        await generate(ws, "b", deadline_ms=20)
        (late,) = (await collect(ws, "b"))["b"]
        assert (late["code"], late["status"]) == ("deadline_exceeded", 504)
        assert late["usage"] == {"input": 0, "cached": 0, "output": 0}


async def test_a_deadline_in_the_middle_is_an_end_like_others() -> None:
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=10**6)
        while (await receive(ws))["type"] != "delta":
            pass
        served.text.cancel("r0", FinishReason.DEADLINE)
        frame = await receive(ws)
        while frame["type"] == "delta":
            frame = await receive(ws)
        assert frame["reason"] == "deadline"


async def test_requests_of_one_connection_hold_bounded_memory() -> None:
    async with serve(max_pending_bytes=5000) as served, served.client() as ws:
        await generate(ws, "one", "hold")  # whatever its size, a single request is not refused for it
        await generate(ws, "a", "x" * 3000)
        await generate(ws, "b", "x" * 3000)
        refused = await collect(ws, "b")
        assert refused["b"][-1]["code"] == "queue_full"


async def test_c6_an_old_connection_is_told_to_go_and_closed_when_idle() -> None:
    """C6, G2: running work is finished first; 1012, so that clients connect again."""
    async with serve(max_connection_age_s=0.1, token_s=0.01) as served, served.client() as ws:
        await generate(ws, "a", max_tokens=30)
        frames, code = await until_closed(ws)
        assert {"type": "goaway", "reason": "max_age", "grace_ms": 30_000} in frames
        assert [frame["reason"] for frame in frames if frame["type"] == "done"] == ["length"]
        assert code == 1012


async def test_c6_the_grace_ends() -> None:
    async with serve(max_connection_age_s=0.05, drain_s=0.1) as served, served.client() as ws:
        await generate(ws, "a", "hold")
        frames, code = await until_closed(ws)
        assert [frame["reason"] for frame in frames if frame["type"] == "done"] == ["cancelled"]
        assert code == 1012


async def test_an_idle_connection_is_closed_with_1001_and_a_busy_one_is_not() -> None:
    async with serve(idle_timeout_s=0.15) as served, served.client() as idle, served.client() as busy:
        await generate(busy, "a", "hold")
        assert await until_closed(idle) == ([], 1001)
        await send(busy, type="cancel", id="a")
        assert (await collect(busy, "a"))["a"][-1]["reason"] == "cancelled"
        assert (await until_closed(busy))[1] == 1001


async def test_goaway_when_the_kernel_drains() -> None:
    """G1: told at once, running streams go on, new ones are refused."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=20)
        while (await receive(ws))["type"] != "start":
            pass
        served.gateway.deliver(Control("drain"))
        await generate(ws, "b")
        frames: list[dict[str, Any]] = []
        while sum(frame["type"] in ("done", "error") for frame in frames) < 2:
            frames.append(await receive(ws))
        kinds = {(frame["type"], frame.get("id"), frame.get("code")) for frame in frames if frame["type"] != "delta"}
        assert kinds == {("goaway", None, None), ("error", "b", "draining"), ("done", "a", None)}


async def test_progress_tells_of_queue_and_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: a client that waits hears something."""
    monkeypatch.setattr("mainspring.plugins.gateways.generation.PROGRESS_S", 0.02)
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", "hold", progress=True)
        assert await receive(ws) == {"type": "progress", "id": "a", "state": "queued"}
        assert (await receive(ws))["type"] == "start"
        started = Started("r0", (1,) * 8, 8, 2, served.text.sampling)
        row = Row("r0", 2, 3, (1,) * 3, False)
        served.gateway.deliver(StepPlan(1, (row,), (started,)))
        frame = await receive(ws)
        assert frame == {"type": "progress", "id": "a", "state": "prefill", "done": 5, "total": 8}
        await send(ws, type="cancel", id="a")
        assert (await receive(ws))["type"] == "done"
        assert served.hub.watchers == {}


async def test_coalesce_ms_makes_fewer_frames_of_the_same_text() -> None:
    async with serve(token_s=0.002) as served, served.client() as ws:
        await generate(ws, "a", max_tokens=50, coalesce_ms=40)
        await generate(ws, "b", max_tokens=50)
        frames = await collect(ws, "a", "b")
        assert text_of(frames["a"]) == text_of(frames["b"])
        assert len(frames["a"]) < len(frames["b"]) / 2
