"""Clients that do not read, a shutdown, and a port that is taken."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from typing import Any

import pytest
import structlog

from mainspring.core.errors import ConfigError
from mainspring.plugins.gateways import connection
from mainspring.plugins.gateways.ws import WebSocketGateway
from mainspring.plugins.settings import Config, ServerConfig

from .fakes import (
    FakePort,
    FakeText,
    Served,
    client_frame,
    collect,
    generate,
    receive,
    send,
    serve,
    text_of,
    until_closed,
)

pytestmark = pytest.mark.anyio


async def stall(served: Served, num_streams: int = 20) -> socket.socket:
    """A client with small buffers that starts endless generations and never reads."""
    sock, _ = await served.raw(receive_buffer=4096)
    for number in range(num_streams):
        frame = {"type": "generate", "id": f"s{number}", "prompt": "x", "max_tokens": 10**9, "return_token_ids": True}
        await asyncio.get_running_loop().sock_sendall(sock, client_frame(json.dumps(frame).encode()))
    return sock


@pytest.mark.slow
async def test_a_client_that_never_reads_is_cut_and_others_stream_on() -> None:
    """B1, B2, B5, E-08: cut at the write deadline, its work cancelled, healthy streams undisturbed."""
    sndbuf = 8192
    with structlog.testing.capture_logs() as lines:
        await cut_a_stalled_client(sndbuf)
    assert [line["slow"] for line in lines if line["event"] == "connection_closed"] == [True, False]


async def cut_a_stalled_client(sndbuf: int) -> None:
    async with serve(write_deadline_s=0.3, max_running_per_connection=20) as served, served.client() as healthy:
        assert served.gateway._socket is not None
        served.gateway._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)  # inherited by what it accepts
        with await stall(served):
            await served.text.until_live(20)
            for round_number in range(3):
                await generate(healthy, f"h{round_number}", max_tokens=50)
                frames = (await collect(healthy, f"h{round_number}"))[f"h{round_number}"]
                assert frames[-1]["reason"] == "length"
            await served.text.until_live(0)
        assert len(set(served.text.cancels)) == 20
        await send(healthy, type="ping")
        assert (await receive(healthy))["type"] == "pong"


@pytest.mark.slow
async def test_a_client_that_pauses_loses_nothing() -> None:
    """B4, 118: deltas are joined, never dropped, while it does not read."""
    async with serve() as served:
        sock, data = await served.raw(receive_buffer=4096)
        loop = asyncio.get_running_loop()
        with sock:
            frame = {"type": "generate", "id": "a", "prompt": "x", "max_tokens": 1500, "return_token_ids": True}
            assert served.gateway._server is not None
            for ws in served.gateway._server.connections:
                ws.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await loop.sock_sendall(sock, client_frame(json.dumps(frame).encode()))
            await served.text.until_live(1)
            await served.text.until_live(0)
            while b'"type":"done"' not in data or not data.endswith(b"}}"):
                data += await loop.sock_recv(sock, 65536)
        frames = parse_server_frames(data)
        mine = [frame for frame in frames if frame.get("id") == "a"]
        assert [frame["seq"] for frame in mine] == list(range(len(mine)))
        assert [token for frame in mine for token in frame.get("tokens", ())] == list(range(1500))


def parse_server_frames(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects of unmasked, unfragmented text frames."""
    frames = []
    while data:
        size, start = data[1], 2
        if size == 126:
            size, start = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, start = int.from_bytes(data[2:10], "big"), 10
        if data[0] == 0x81:
            frames.append(json.loads(data[start : start + size]))
        data = data[start + size :]
    return frames


@pytest.mark.slow
async def test_a_client_that_floods_pings_and_never_reads_is_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-08: replies are bounded like everything else."""
    monkeypatch.setattr(connection, "MAX_BACKLOG_BYTES", 20_000)
    async with serve(write_deadline_s=30) as served:
        sock, _ = await served.raw(receive_buffer=4096)
        loop = asyncio.get_running_loop()
        pings = client_frame(b'{"type":"ping","x":"' + b"x" * 60_000 + b'"}') * 1000
        with sock:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_sendall(sock, pings), 2)
            (serving,) = served.gateway._connections
            assert serving._session.backlog_bytes < 200_000


async def test_shutdown_closes_with_1012_after_the_terminals() -> None:
    """E-09, G2: idle and streaming clients, and one that never answers; nothing outlives it."""
    async with serve() as served:
        async with served.client() as idle, served.client() as busy:
            await generate(busy, "a", max_tokens=10**6)
            while (await receive(busy))["type"] != "delta":
                pass
            reading = asyncio.gather(until_closed(idle), until_closed(busy))
            await served.gateway.drain()
            (idle_frames, idle_code), (busy_frames, busy_code) = await reading
            assert (idle_code, busy_code) == (1012, 1012)
            assert idle_frames == []
            assert busy_frames[-1]["reason"] == "cancelled"
            assert [frame["type"] for frame in busy_frames].count("done") == 1
            assert served.text.num_live == 0
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", served.gateway.port)
        await served.gateway.start(served.port)
        async with served.client() as again:
            await generate(again, "a", max_tokens=1)
            assert (await collect(again, "a"))["a"][-1]["reason"] == "length"


@pytest.mark.slow
async def test_shutdown_does_not_wait_for_a_client_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """E-09."""
    monkeypatch.setattr("mainspring.plugins.gateways.ws.CLOSE_TIMEOUT_S", 0.3)
    async with serve() as served:
        with await stall(served, 3):
            await served.text.until_live(3)
            async with asyncio.timeout(10):
                await served.gateway.drain()


def test_occupied_port_is_found_at_bind() -> None:
    """E-12: before anything is loaded, naming address and port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gateway = WebSocketGateway(None, Config(server=ServerConfig(port=port)), FakeText())
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*address already in use.*server.port"):
            gateway.bind()


def test_two_servers_cannot_both_bind() -> None:
    """E-12: also when neither serves yet."""
    first = WebSocketGateway(None, Config(server=ServerConfig(port=0)), FakeText())
    first.bind()
    second = WebSocketGateway(None, Config(server=ServerConfig(port=first.port)), FakeText())
    with pytest.raises(ConfigError):
        second.bind()
    asyncio.run(first.drain())


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    """The advice is about the host: no port would help."""
    gateway = WebSocketGateway(None, Config(server=ServerConfig(host=host, port=0)), FakeText())
    with pytest.raises(ConfigError, match=f"server.host = '{re.escape(host)}'.*server.host=ADDRESS"):
        gateway.bind()


async def test_flush_waits_until_everything_was_sent() -> None:
    async with serve() as served, served.client() as ws:
        await served.gateway.flush()
        await generate(ws, "a", max_tokens=20)
        await served.text.until_live(1)
        await served.text.until_live(0)
        await served.gateway.flush()
        assert all(serving._session.pop() is None for serving in served.gateway._connections)
        assert (await collect(ws, "a"))["a"][-1]["type"] == "done"


async def test_run_ends_with_a_drain_when_cancelled() -> None:
    text, port = FakeText(), FakePort()
    gateway = WebSocketGateway(None, Config(server=ServerConfig(port=0)), text)
    await gateway.start(port)
    served = Served(gateway, port, text)
    running = asyncio.create_task(gateway.run(port))
    async with served.client() as ws:
        await generate(ws, "a", max_tokens=3)
        assert text_of((await collect(ws, "a"))["a"])
        running.cancel()
        assert (await until_closed(ws))[1] == 1012
        with pytest.raises(asyncio.CancelledError):
            await running
