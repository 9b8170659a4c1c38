"""What the WebSocket gateway costs: CPU time per delivered delta against a bare server, memory of idle connections, and
what one client that does not read costs twenty that do.

Server and clients are processes of their own.  A text edge without a model emits one token per stream and tick, so only
the way from there to the socket is measured.  The bare server sends the same frames with ``websockets`` alone.  What is
compared takes turns, so that another load on the machine meets both.

    python benchmarks/gateway_cost.py [--streams 200] [--rate 20] [--seconds 5] [--rounds 3] [--idle 1000]

The goals: a ratio of at most 2 (also with ``--streams 1000 --seconds 60 --rounds 1``), 25 MiB for 1,000 idle
connections, and a p99 with the stalled client within 10 % of the one without it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import statistics
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_bare

from mainspring.core.messages import Finish, FinishReason, Message, Timing, Usage
from mainspring.core.policy import ExecutorInfo
from mainspring.plugins.gateways.ws import WebSocketGateway
from mainspring.plugins.settings import Config, ServerConfig
from mainspring.plugins.text.events import Accepted, Delta, Ended

STREAMS_PER_CONNECTION = 10
NUM_HEALTHY = 20


class Port:
    """A kernel that is ready."""

    config = Config()
    info = ExecutorInfo("fake", 1000, 4096, (0,), 64)
    ready = healthy = True
    draining = False

    def now(self) -> float:
        return time.monotonic()

    def post(self, *messages: Message) -> None:
        """Nobody listens."""

    def stats(self) -> dict[str, float]:
        return {}


class Ticking:
    """Every open stream gets one token per tick, all of them in one go, as a step of the engine does."""

    def __init__(self) -> None:
        self.sinks: dict[str, tuple[Any, int]] = {}
        self._paused: set[str] = set()
        self._number = 0

    def open(self, request: Any, sink: Any, **_: Any) -> str:
        self._number += 1
        rid = f"r{self._number}"
        self.sinks[rid] = (sink, request.max_tokens)
        asyncio.get_running_loop().call_soon(sink, Accepted(rid, 3))
        return rid

    def cancel(self, rid: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        if (entry := self.sinks.pop(rid, None)) is not None:
            entry[0](Ended(rid, "", (), Finish(reason, Usage(3, 0, 0), Timing(0.0))))

    def pause(self, rids: Iterable[str]) -> None:
        self._paused.update(rids)

    def resume(self, rids: Iterable[str]) -> None:
        self._paused.difference_update(rids)

    def tick(self, number: int) -> None:
        for rid, (sink, limit) in list(self.sinks.items()):
            if rid in self._paused:
                continue
            if number < limit:
                sink(Delta(rid, " word", (number,)))
            else:
                del self.sinks[rid]
                sink(Ended(rid, "", (), Finish(FinishReason.LENGTH, Usage(3, 0, limit), Timing(0.0))))


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def gateway(pipe: Connection) -> None:
    """Serve; commands come through ``pipe``: how often to tick and at what rate, or what memory is used."""
    text = Ticking()
    server = ServerConfig(port=0, max_connections=5000, max_running_per_connection=STREAMS_PER_CONNECTION)
    made = WebSocketGateway(None, Config(server=server), text)
    await made.start(Port())  # type: ignore[arg-type]
    pipe.send(made.port)
    await obey(pipe, text.tick)
    await made.drain()


async def bare(pipe: Connection) -> None:
    """The same frames, sent by the library alone from one task per connection."""
    wakes: list[asyncio.Queue[int]] = []
    last = [0]

    async def handler(ws: ServerConnection) -> None:
        asked = [json.loads(await ws.recv()) for _ in range(STREAMS_PER_CONNECTION)]
        names, last[0] = [one["id"] for one in asked], asked[0]["max_tokens"]
        wake: asyncio.Queue[int] = asyncio.Queue()
        wakes.append(wake)
        with contextlib.suppress(Exception):
            while True:
                number = await wake.get()
                for name in names:
                    frame = f'{{"type":"delta","id":"{name}","seq":{number + 1},"text":" word","n":1}}'
                    await ws.send(frame.encode(), text=True)

    def tick(number: int) -> None:
        if number < last[0]:
            for wake in wakes:
                wake.put_nowait(number)

    async with serve_bare(handler, "127.0.0.1", 0, compression=None) as server:
        pipe.send(server.sockets[0].getsockname()[1])
        await obey(pipe, tick)


async def obey(pipe: Connection, tick: Any) -> None:
    while (command := await asyncio.to_thread(pipe.recv)) is not None:
        if command == "memory":
            pipe.send(rss_bytes())
            continue
        num_ticks, rate = command
        began, started = cpu_s(), time.monotonic()
        for number in range(num_ticks + 1):
            await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
            tick(number)
        await asyncio.sleep(0.2)
        pipe.send((cpu_s() - began, time.monotonic() - started))


def serve_in_process(which: Any) -> tuple[multiprocessing.Process, Connection, int]:
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=run, args=(which, theirs))
    process.start()
    return process, mine, mine.recv()


def run(which: Any, pipe: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    asyncio.run(which(pipe))


async def load(port: int, pipe: Connection, num_streams: int, rate: float, seconds: float) -> tuple[float, float, int]:
    """Server CPU seconds, wall seconds, deltas received by all clients."""
    num_ticks, received = int(rate * seconds), 0
    async with contextlib.AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(connect(f"ws://127.0.0.1:{port}/v1/stream", compression=None, proxy=None))
            for _ in range(num_streams // STREAMS_PER_CONNECTION)
        ]
        for ws in sockets:
            for number in range(STREAMS_PER_CONNECTION):
                frame = {"type": "generate", "id": f"s{number}", "prompt": "x", "max_tokens": num_ticks}
                await ws.send(json.dumps(frame))
        await asyncio.sleep(0.3)

        async def read(ws: Any) -> None:
            nonlocal received
            with contextlib.suppress(Exception):
                async for raw in ws:
                    received += '"delta"' in raw

        readers = [asyncio.create_task(read(ws)) for ws in sockets]
        pipe.send((num_ticks, rate))
        cpu, wall = await asyncio.to_thread(pipe.recv)
        await asyncio.sleep(0.2)
        for reader in readers:
            reader.cancel()
    return cpu, wall, received


async def intervals(port: int, pipe: Connection, rate: float, seconds: float, with_stalled: bool) -> list[float]:
    """Seconds between the tokens of 20 healthy clients; beside them one that asks for everything and reads nothing."""
    num_ticks, gaps = int(rate * seconds), list[float]()
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.setblocking(False)
    if with_stalled:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(stalled, ("127.0.0.1", port))
        await loop.sock_sendall(stalled, HEAD.encode())
        for number in range(STREAMS_PER_CONNECTION):
            ask = {"type": "generate", "id": f"s{number}", "prompt": "x", "max_tokens": 10**6, "return_token_ids": True}
            payload = json.dumps(ask).encode()
            await loop.sock_sendall(stalled, bytes([0x81, 0xFE]) + len(payload).to_bytes(2, "big") + bytes(4) + payload)
    async with contextlib.AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{port}/v1/stream"
        sockets = [
            await stack.enter_async_context(connect(url, compression=None, proxy=None)) for _ in range(NUM_HEALTHY)
        ]
        for ws in sockets:
            await ws.send(json.dumps({"type": "generate", "id": "h", "prompt": "x", "max_tokens": num_ticks}))

        async def read(ws: Any) -> None:
            before = None
            async for raw in ws:
                if '"delta"' in raw:
                    now = time.monotonic()
                    gaps.extend([] if before is None else [now - before])
                    before = now
                elif '"done"' in raw:
                    return

        readers = [asyncio.create_task(read(ws)) for ws in sockets]
        await asyncio.sleep(0.3)
        pipe.send((num_ticks, rate))
        await asyncio.to_thread(pipe.recv)
        await asyncio.gather(*readers)
    stalled.close()
    return gaps


HEAD = (
    "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def idle(port: int, pipe: Connection, count: int) -> int:
    """Bytes of server memory that ``count`` idle connections take."""
    pipe.send("memory")
    before = pipe.recv()
    opened = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.encode())
        await reader.readuntil(b"\r\n\r\n")
        opened.append(writer)
    pipe.send("memory")
    after = pipe.recv()
    for writer in opened:
        writer.close()
    return int(after - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second of each stream")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=1000)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192) if hard > 0 else 8192, hard))
    servers = {name: serve_in_process(which) for name, which in (("gateway", gateway), ("bare", bare))}
    costs: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(args.rounds):
        for name, (_, pipe, port) in servers.items():
            cpu, wall, received = asyncio.run(load(port, pipe, args.streams, args.rate, args.seconds))
            expected = args.streams * int(args.rate * args.seconds)
            costs[name].append(cpu / max(1, received) * 1e6)
            print(f"{name:8} {received} of {expected} deltas in {wall:.2f} s, {costs[name][-1]:.1f} us of CPU each")
    ratios = [one / other for one, other in zip(costs["gateway"], costs["bare"], strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} (of each round: {', '.join(f'{one:.2f}' for one in ratios)})")
    _, pipe, port = servers["gateway"]
    if args.idle:
        print(f"{args.idle} idle connections take {asyncio.run(idle(port, pipe, args.idle)) / 2**20:.1f} MiB")
    gaps: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(2 * args.rounds):
        for with_stalled, seen in gaps.items():
            seen.extend(asyncio.run(intervals(port, pipe, 50.0, args.seconds, with_stalled)))
    for with_stalled, seen in gaps.items():
        cuts = statistics.quantiles(seen, n=100)
        shown = f"p50 {cuts[49] * 1e3:.1f} ms, p99 {cuts[98] * 1e3:.1f} ms of {len(seen)}"
        print(f"{NUM_HEALTHY} healthy clients{' and a stalled one' if with_stalled else '':18}: inter-token {shown}")
    for process, pipe, _ in servers.values():
        pipe.send(None)
        process.join(20)


if __name__ == "__main__":
    main()
