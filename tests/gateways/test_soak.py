"""Minutes of load on a server in a process of its own; `make soak` runs it.  The figures are printed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from .fakes import client_frame, handshake

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.anyio, pytest.mark.soak]
WIDE = ("scheduler.max_running=1000", "scheduler.token_budget=4000", "server.max_connections_per_key=2000")


class Server:
    """The other process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.port = int(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    async def memory(self) -> int:
        return int(await asyncio.to_thread(self._ask, "memory"))

    async def stats(self) -> dict[str, float]:
        figures: dict[str, float] = json.loads(await asyncio.to_thread(self._ask, "stats"))
        return figures

    async def until_idle(self) -> None:
        """Every gauge is back to nothing."""
        gauges = ("live", "running", "waiting", "kv_used_blocks", "paused")
        async with asyncio.timeout(20):
            stats = await self.stats()
            while any(stats[name] for name in gauges):
                await asyncio.sleep(0.05)
                stats = await self.stats()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/stream"


@contextlib.contextmanager
def server(*settings: str, rate: float = 20.0) -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.gateways.soak_server", "--rate", str(rate)]
    command += [f"--set={setting}" for setting in settings]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


@contextlib.asynccontextmanager
async def opened(server: Server, count: int, **options: Any) -> AsyncIterator[list[ClientConnection]]:
    async with contextlib.AsyncExitStack() as stack:
        sockets = []
        for _ in range(count):
            sockets.append(
                await stack.enter_async_context(connect(server.url, proxy=None, compression=None, **options))
            )
            await sockets[-1].recv()
        yield sockets


async def play(ws: ClientConnection, names: list[str], max_tokens: int, ends: list[dict[str, Any]]) -> int:
    """Start streams on one connection and read them to their ends; the number of their deltas."""
    for name in names:
        await ws.send(json.dumps({"type": "generate", "id": name, "prompt": "hi", "max_tokens": max_tokens}))
    left, num_deltas = len(names), 0
    while left:
        raw = await ws.recv()
        if '"delta"' in raw:
            num_deltas += 1
            continue
        frame = json.loads(raw)
        if frame["type"] in ("done", "error"):
            ends.append(frame)
            left -= 1
    return num_deltas


async def test_a_thousand_streams_for_a_minute() -> None:
    """The issue's goal: 20 tokens/s each through gateway, text edge and kernel, without one failure."""
    seconds, num_connections, each = 60, 50, 20
    with server(*WIDE, "server.max_running_per_connection=20") as it:
        async with opened(it, num_connections) as sockets:
            ends: list[dict[str, Any]] = []
            names = [f"s{number}" for number in range(each)]
            before, began = await it.stats(), time.monotonic()
            counts = await asyncio.gather(*(play(ws, names, 20 * seconds, ends) for ws in sockets))
            took, after = time.monotonic() - began, await it.stats()
        await it.until_idle()
    assert len(ends) == num_connections * each
    assert {(end["type"], end.get("reason")) for end in ends} == {("done", "length")}
    assert {end["usage"]["output"] for end in ends} == {20 * seconds}
    cost_us = (after["cpu_s"] - before["cpu_s"]) / (len(ends) * 20 * seconds) * 1e6
    print(f"\n{len(ends)} streams of {20 * seconds} tokens in {took:.1f} s (at the pace: {seconds} s), ", end="")
    print(f"{sum(counts)} deltas, {cost_us:.1f} us of server CPU per token")


async def test_two_hundred_streams_for_a_minute_lose_nobody() -> None:
    """A9: well-behaved clients are never taken for gone."""
    with server(*WIDE) as it:
        async with opened(it, 200) as sockets:
            ends: list[dict[str, Any]] = []
            await asyncio.gather(*(play(ws, ["a"], 1200, ends) for ws in sockets))
        await it.until_idle()
        assert (await it.stats())["slow_closed"] == 0
    assert [end.get("reason") for end in ends] == ["length"] * 200


async def test_a_reader_that_stalls_costs_little_and_is_cut_at_the_deadline() -> None:
    """B1, B2: under 1 MiB, and gone within a second of the deadline, for one stream and for sixteen."""
    deadline_s = 60.0
    with server(f"server.write_deadline_s={deadline_s}", "server.pause_max_s=300", rate=2000) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)  # the first of everything is dearer
        writer.write(handshake() + client_frame(b'{"type":"generate","id":"w","prompt":"x","max_tokens":2000}'))
        while b'"done"' not in await reader.read(65536):
            pass
        writer.close()
        await it.until_idle()
        for num_streams in (1, 16):
            before = await it.memory()
            loop = asyncio.get_running_loop()
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=2)  # it reads no further
            writer.write(handshake())
            for number in range(num_streams):
                frame = {"type": "generate", "id": f"s{number}", "prompt": "x", "max_tokens": 1_000_000}
                frame |= {"ignore_eos": True, "return_token_ids": True}
                writer.write(client_frame(json.dumps(frame).encode()))
            stopped, most = 0.0, before
            async with asyncio.timeout(deadline_s * 3):
                while (now := await it.stats())["live"] or not now["slow_closed"]:
                    most = max(most, await it.memory())
                    stopped = stopped or (loop.time() if now["paused"] == num_streams else 0.0)
                    await asyncio.sleep(0.1)
            held = loop.time() - stopped
            writer.close()
            print(f"\n{num_streams} streams: {(most - before) / 2**20:.2f} MiB, cut {held:.1f} s after all were paused")
            assert most - before < 2**20
            assert stopped and held < deadline_s + 1.5
        await it.until_idle()


async def test_a_pause_of_45_seconds_loses_nothing() -> None:
    """B4: the library's client stops reading after 16 frames, and so answers no ping, and must survive it.

    It does not ping itself: the answers would be behind what it does not read.
    """
    with server(rate=50) as it:
        async with opened(it, 1, ping_interval=None) as (ws,):
            frame = {"type": "generate", "id": "a", "prompt": "x", "max_tokens": 3500, "return_token_ids": True}
            await ws.send(json.dumps(frame))
            frames = [json.loads(await ws.recv()), json.loads(await ws.recv())]
            await asyncio.sleep(45)
            while frames[-1]["type"] != "done":
                frames.append(json.loads(await ws.recv()))
        await it.until_idle()
    assert [one["seq"] for one in frames] == list(range(len(frames)))
    assert sum(len(one.get("tokens", ())) for one in frames) == frames[-1]["usage"]["output"] == 3500


async def test_a_hundred_connections_dropped_at_once_twenty_times() -> None:
    """A7: every gauge returns to zero each round, and memory does not grow with the rounds."""
    with server(*WIDE) as it:
        frame = client_frame(b'{"type":"generate","id":"a","prompt":"x","max_tokens":1000000}')
        sizes = []
        for _ in range(20):
            pairs = [await asyncio.open_connection("127.0.0.1", it.port) for _ in range(100)]
            for _, writer in pairs:
                writer.write(handshake() + frame)
            async with asyncio.timeout(30):
                while (await it.stats())["running"] < 100:
                    await asyncio.sleep(0.02)
            for _, writer in pairs:
                writer.transport.abort()
            await it.until_idle()
            assert (await it.stats())["connections"] == 0
            sizes.append(await it.memory())
    print(f"\nresident MiB after rounds 5, 10, 20: {[round(sizes[at] / 2**20, 1) for at in (4, 9, 19)]}")
    assert sizes[19] - sizes[4] < 8 * 2**20


async def test_a_strict_client_survives_a_minute_of_huge_prompts() -> None:
    """C1: one that pings every 2 s and waits 2 s streams on while others make the server encode megabytes."""
    with server(*WIDE, rate=50) as it:
        async with opened(it, 1, ping_interval=2, ping_timeout=2) as (strict,), opened(it, 1, max_size=None) as (big,):
            ends: list[dict[str, Any]] = []
            streaming = asyncio.create_task(play(strict, ["a"], 50 * 60, ends))
            number = 0
            while not streaming.done():
                huge = {"type": "generate", "id": f"h{number}", "prompt": "word " * 400_000, "max_tokens": 1}
                await big.send(json.dumps(huge))
                while (answer := json.loads(await big.recv()))["type"] not in ("done", "error"):
                    pass
                assert answer["id"] == f"h{number}"
                number += 1
            await streaming
        await it.until_idle()
    print(f"\n{number} prompts of 2 MB beside it")
    assert ends[0]["usage"]["output"] == 3000


class CuttingProxy:
    """Passes bytes on, and cuts a connection over which the server has sent nothing for ``idle_s``."""

    def __init__(self, port: int, idle_s: float) -> None:
        self._port, self._idle_s = port, idle_s
        self.num_cut = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, down = await asyncio.open_connection("127.0.0.1", self._port)
        forward = asyncio.create_task(self._pass(reader, down))
        try:
            while data := await asyncio.wait_for(upstream.read(65536), self._idle_s):
                writer.write(data)
        except TimeoutError:
            self.num_cut += 1
        finally:
            forward.cancel()
            writer.close()
            down.close()

    @staticmethod
    async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)


async def test_a_proxy_that_cuts_silent_connections_sees_none() -> None:
    """C4: a request waits in the queue for 90 s behind one that runs; pings keep the connection alive."""
    with server("scheduler.max_running=1", rate=10) as it:
        proxy = CuttingProxy(it.port, 60)
        listening = await asyncio.start_server(proxy, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        async with opened(it, 1) as (other,), connect(f"ws://127.0.0.1:{port}/v1/stream", proxy=None) as ws:
            ends: list[dict[str, Any]] = []
            running = asyncio.create_task(play(other, ["a"], 900, ends))
            await asyncio.sleep(0.5)
            await ws.recv()
            assert await play(ws, ["b"], 5, ends) == 5
            await running
        listening.close()
    assert (proxy.num_cut, [end["id"] for end in ends]) == (0, ["a", "b"])
