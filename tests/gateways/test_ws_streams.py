"""Many generations on one socket, cancels, and clients that go away, over real loopback sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest
import structlog

from .fakes import PIECES, client_frame, collect, generate, receive, send, serve, text_of

pytestmark = pytest.mark.anyio


async def test_one_generation_from_hello_to_done() -> None:
    """D1, E2: text arrives untouched; the terminal has usage and timing."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=10, temperature=0.5, stop="END")
        frames = (await collect(ws, "a"))["a"]
        assert [frames[0]["type"], frames[-1]["type"]] == ["start", "done"]
        assert frames[0]["model"] == "tiny"
        assert text_of(frames) == "".join(PIECES) * 2
        assert sum(frame["n"] for frame in frames[1:-1]) == 10
        assert all("tokens" not in frame for frame in frames)
        assert frames[-1]["reason"] == "length"
        assert frames[-1]["usage"] == {"input": 3, "cached": 0, "output": 10}
        timing = frames[-1]["timing"]
        assert set(timing) == {"queued", "prefill", "ttft", "decode", "total", "blocked"}
        assert 0 < timing["ttft"] <= timing["total"]
        (request,) = served.text.requests
        assert (request.prompt, request.temperature, request.stop) == ("Hi", 0.5, ("END",))
        (note,) = served.port.notes("gateway")
        assert note.facts["client_id"] == "a"


async def test_many_generations_share_a_socket() -> None:
    async with serve() as served, served.client() as ws:
        ids = [f"s{number}" for number in range(50)]
        for number, stream_id in enumerate(ids):
            await generate(ws, stream_id, max_tokens=number + 1, return_token_ids=True)
        frames = await collect(ws, *ids)
        for number, stream_id in enumerate(ids):
            mine = frames[stream_id]
            assert [token for frame in mine for token in frame.get("tokens", ())] == list(range(number + 1))
            assert text_of(mine) == "".join(PIECES[k % len(PIECES)] for k in range(number + 1))
        order = [stream_id for stream_id in ids if frames[stream_id][-1]["reason"] == "length"]
        assert order == ids


async def test_two_connections_may_use_the_same_id() -> None:
    """E-02."""
    async with serve() as served, served.client() as one, served.client() as two:
        await generate(one, "same", max_tokens=5)
        await generate(two, "same", max_tokens=7)
        assert (await collect(one, "same"))["same"][-1]["usage"]["output"] == 5
        assert (await collect(two, "same"))["same"][-1]["usage"]["output"] == 7


async def test_duplicate_id_is_refused_and_the_first_goes_on() -> None:
    """E-02; the id is free again after the terminal."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=20)
        await generate(ws, "a", max_tokens=1)
        first = None
        while first is None or first["type"] != "error":
            first = await receive(ws)
        assert (first["code"], "id" in first) == ("duplicate_id", False)
        last = first
        while last["type"] != "done":
            last = await receive(ws)
        assert last["usage"]["output"] == 20
        await generate(ws, "a", max_tokens=1)
        assert (await collect(ws, "a"))["a"][-1]["usage"]["output"] == 1


async def test_cancel_mid_stream_has_one_terminal_with_usage() -> None:
    """A4, E3: the partial count is reported and the connection stays usable."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=100_000)
        seen = 0
        while seen < 5:
            seen += (await receive(ws))["type"] == "delta"
        await send(ws, type="cancel", id="a")
        await send(ws, type="cancel", id="a")
        frame = await receive(ws)
        while frame["type"] == "delta":
            frame = await receive(ws)
        assert (frame["type"], frame["reason"]) == ("done", "cancelled")
        assert 5 <= frame["usage"]["output"] < 1000
        await generate(ws, "b", max_tokens=2)
        assert (await collect(ws, "b"))["b"][-1]["reason"] == "length"
        assert [note.facts["why"] for note in served.port.notes("gateway.cancel")] == ["client"]


async def test_cancel_in_the_same_segment_as_generate() -> None:
    """A5: exactly one terminal, nothing left running."""
    async with serve() as served:
        sock, data = await served.raw()
        loop = asyncio.get_running_loop()
        both = b"".join(
            client_frame(json.dumps(frame).encode())
            for frame in ({"type": "generate", "id": "a", "prompt": "hold"}, {"type": "cancel", "id": "a"})
        )
        await loop.sock_sendall(sock, both)
        while b'"type":"done"' not in data:
            data += await loop.sock_recv(sock, 4096)
        assert b'"reason":"cancelled"' in data
        await served.text.until_live(0)
        await loop.sock_sendall(sock, client_frame(b'{"type":"ping","last":1}'))
        while b"pong" not in data:
            data += await loop.sock_recv(sock, 4096)
        assert data.count(b'"reason"') == 1
        sock.close()


async def test_cancel_of_nothing_is_ignored() -> None:
    async with serve() as served, served.client() as ws:
        await send(ws, type="cancel", id="never")
        await send(ws, type="ping", t=7)
        assert await receive(ws) == {"t": 7, "type": "pong"}


async def test_refusal_and_failure_are_typed_terminals() -> None:
    """E1, E9: one terminal each, the connection stays."""
    async with serve() as served, served.client() as ws:
        await generate(ws, "no", "refuse")
        await generate(ws, "bad", "boom")
        await generate(ws, "wrong", max_tokens=-1)
        await generate(ws, "ok", max_tokens=3)
        frames = await collect(ws, "no", "bad", "wrong", "ok")
        (refused,) = frames["no"]
        assert (refused["code"], refused["status"], refused["retry_after_ms"]) == ("queue_full", 429, 1000)
        assert frames["bad"][-1]["code"] == "server_error"
        assert frames["bad"][-1]["usage"]["output"] == 2
        (wrong,) = frames["wrong"]
        assert (wrong["code"], wrong["param"]) == ("invalid_request", "max_tokens")
        assert frames["ok"][-1]["type"] == "done"


@pytest.mark.parametrize("how", ["rst", "close", "half-close", "close-frame"])
async def test_work_ends_when_the_client_goes(how: str) -> None:
    """A1, E-01: cancelled at once, each request once; another client's work goes on."""
    async with serve(token_s=0.002) as served, served.client() as other:
        await generate(other, "o", "hold")
        loop = asyncio.get_running_loop()
        sock, data = await served.raw()
        with sock:
            for stream_id in ("a", "b"):
                frame = {"type": "generate", "id": stream_id, "prompt": "x", "max_tokens": 1_000_000}
                await loop.sock_sendall(sock, client_frame(json.dumps(frame).encode()))
            while data.count(b'"type":"delta"') < 4:
                data += await loop.sock_recv(sock, 4096)
            assert served.text.num_live == 3
            if how == "rst":
                reset(sock)
            elif how == "close":
                sock.close()
            elif how == "half-close":
                sock.shutdown(socket.SHUT_WR)
            else:  # a close frame, and then it neither reads nor closes
                await loop.sock_sendall(sock, client_frame(struct.pack("!H", 1000), opcode=8))
            await served.text.until_live(1)  # well below the library's 10 s for closing handshakes
        assert sorted(served.text.cancels) == ["r1", "r2"]
        await send(other, type="cancel", id="o")
        assert (await collect(other, "o"))["o"][-1]["reason"] == "cancelled"


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.slow
async def test_hundred_connections_drop_at_once_twenty_times() -> None:
    """A7: nothing stays behind."""
    async with serve(token_s=0.005) as served:
        for _ in range(20):
            clients = await asyncio.gather(*(served.raw() for _ in range(100)))
            loop = asyncio.get_running_loop()
            for sock, _ in clients:
                frame = b'{"type":"generate","id":"a","prompt":"x","max_tokens":1000000}'
                await loop.sock_sendall(sock, client_frame(frame))
            await served.text.until_live(100)
            for sock, _ in clients:
                reset(sock)
            await served.text.until_live(0)
        assert len(served.text.cancels) == 2000


async def test_one_log_line_per_request_without_what_people_wrote() -> None:
    """F-09, F-10: rid, client id, reason, tokens, first token; never text."""
    with structlog.testing.capture_logs() as lines:
        async with serve() as served, served.client() as ws:
            await generate(ws, "event", "secret words", max_tokens=2, tenant="level")
            await generate(ws, "no", "refuse")
            await collect(ws, "event", "no")
    by_id = {line["client_id"]: line for line in lines if line["event"] == "request"}
    assert [line["event"] for line in lines].count("request") == 2
    assert (by_id["event"]["reason"], by_id["event"]["output_tokens"]) == ("length", 2)
    assert (by_id["event"]["rid"], by_id["event"]["log_level"]) == ("r0", "info")
    assert by_id["event"]["ttft_ms"] > 0
    assert (by_id["no"]["code"], by_id["no"]["ttft_ms"]) == ("queue_full", None)
    assert "secret" not in str(lines)
    assert "Hé" not in str(lines)
