"""A text edge without a model, a kernel port without a kernel, and a gateway served on a loopback socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mainspring.core.messages import Failure, Finish, FinishReason, Message, Note, SamplingParams, Timing, Usage
from mainspring.core.policy import ExecutorInfo
from mainspring.plugins.gateways.hub import Hub
from mainspring.plugins.gateways.ws import WebSocketGateway
from mainspring.plugins.schema import GenerateRequest
from mainspring.plugins.settings import Config, ServerConfig
from mainspring.plugins.text.events import Accepted, Delta, Ended, TextEvent

from ..wire.schemas import check_server_frame

Sink = Callable[[TextEvent], None]
PIECES = ("Hé", "llo ", "👩‍👩‍👧", " 漢字", "\n")


class FakePort:
    """A kernel that is ready; tests turn its flags."""

    def __init__(self) -> None:
        self.config = Config()
        self.info = ExecutorInfo("tiny", 100, 2048, (0,), 64)
        self.ready = self.healthy = True
        self.draining = False
        self.posted: list[Message] = []
        self.figures: dict[str, float] = {}

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def post(self, *messages: Message) -> None:
        self.posted += messages

    def post_threadsafe(self, *messages: Message) -> None:
        raise AssertionError("the gateway lives on the loop's thread")

    def stats(self) -> dict[str, float]:
        return self.figures

    def notes(self, point: str) -> list[Note]:
        return [message for message in self.posted if isinstance(message, Note) and message.point == point]


@dataclass
class _Generation:
    request: GenerateRequest
    sink: Sink
    received: float
    scheduled: float | None = None
    first_token: float | None = None
    num_output: int = 0
    stopping: FinishReason | None = None
    paused: bool = False


class FakeText:
    """Emits ``max_tokens`` pieces of text, one every ``token_s`` seconds, for every request.

    The prompt steers it: "hold" waits for a cancel, "refuse" fails before the start, "boom" fails after two tokens,
    "stop" ends as a model does.
    """

    def __init__(self, token_s: float = 0.001) -> None:
        self.token_s = token_s
        self._live: dict[str, _Generation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.requests: list[GenerateRequest] = []
        self.steer: Callable[[GenerateRequest], str | None] = lambda request: request.prompt
        self.cancels: list[str] = []
        self.pauses: list[str] = []
        self.resumes: list[str] = []
        self.tenants: list[str] = []
        self.sampling = SamplingParams()
        self._changed = asyncio.Event()

    def open(
        self,
        request: GenerateRequest,
        sink: Sink,
        *,
        tenant: str | None = None,
        received: float | None = None,
        taken: bool = False,
    ) -> str:
        assert received is not None and taken
        rid = f"r{len(self.requests)}"
        self.requests.append(request)
        self.tenants.append(tenant or request.tenant)
        self._live[rid] = _Generation(request, sink, received)
        self._tasks[rid] = asyncio.create_task(self._generate(rid))
        self._change()
        return rid

    def pause(self, rids: Iterable[str]) -> None:
        for rid in rids:
            self.pauses.append(rid)
            if rid in self._live:
                self._live[rid].paused = True

    def resume(self, rids: Iterable[str]) -> None:
        for rid in rids:
            self.resumes.append(rid)
            if rid in self._live:
                self._live[rid].paused = False

    def cancel(self, rid: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Like the real one: before the engine has it a request ends within this call, later it does so in a step."""
        self.cancels.append(rid)
        if (live := self._live.get(rid)) is not None:
            live.stopping = reason
            if live.scheduled is None:
                self._end(rid, reason)

    async def _generate(self, rid: str) -> None:
        await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        live = self._live.get(rid)
        if live is None:
            return None
        prompt = self.steer(live.request)
        if prompt == "refuse":
            return self._end(rid, FinishReason.ERROR, Failure("queue_full", "too many requests wait"))
        live.scheduled = clock()
        live.sink(Accepted(rid, 3))
        while live.num_output < live.request.max_tokens:
            await asyncio.sleep(self.token_s)
            if live.stopping is not None:
                return self._end(rid, live.stopping)
            if prompt == "hold" or live.paused:
                continue
            live.first_token = clock() if live.first_token is None else live.first_token
            live.sink(Delta(rid, PIECES[live.num_output % len(PIECES)], (live.num_output,)))
            live.num_output += 1
            if prompt == "boom" and live.num_output == 2:
                return self._end(rid, FinishReason.ERROR, Failure("server_error", "the executor failed"))
        return self._end(rid, FinishReason.STOP if prompt == "stop" else FinishReason.LENGTH)

    def _end(self, rid: str, reason: FinishReason, failure: Failure | None = None) -> None:
        live = self._live.pop(rid)
        del self._tasks[rid]
        timing = Timing(live.received, live.scheduled, live.first_token, asyncio.get_running_loop().time())
        live.sink(Ended(rid, "", (), Finish(reason, Usage(3, 0, live.num_output), timing, failure=failure)))
        self._change()

    @property
    def num_live(self) -> int:
        return len(self._live)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until_live(self, count: int) -> None:
        """Wait until exactly ``count`` requests are live."""
        async with asyncio.timeout(20):
            while self.num_live != count:
                await self._changed.wait()


class Served:
    """A running gateway and its surroundings."""

    def __init__(self, gateway: WebSocketGateway, port: FakePort, text: FakeText) -> None:
        self.gateway, self.port, self.text = gateway, port, text

    @property
    def hub(self) -> Hub:
        assert self.gateway._hub is not None
        return self.gateway._hub

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.gateway.port}/v1/stream"

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[ClientConnection]:
        """A WebSocket client that has read the greeting."""
        async with connect(self.url, proxy=None, max_size=None, **options) as ws:
            assert (await receive(ws))["type"] == "hello"
            yield ws

    async def http(self, request: str, sent: str = "") -> tuple[int, dict[str, str], str]:
        """Send the head of a request, and a body; returns status, headers by lower-case name, and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        writer.write((request.rstrip("\n") + "\n\n").replace("\n", "\r\n").encode() + sent.encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        status, *lines = head.split("\r\n")
        return int(status.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body

    async def raw(self, receive_buffer: int | None = None) -> tuple[socket.socket, bytes]:
        """A bare TCP socket after the opening handshake, non-blocking; and what came with it of the first frames."""
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", self.gateway.port))
        await loop.sock_sendall(sock, handshake())
        data = b""
        while b"\r\n\r\n" not in data:
            data += await loop.sock_recv(sock, 4096)
        head, _, rest = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101")
        return sock, rest


def handshake(*headers: str) -> bytes:
    """The bytes of an opening handshake."""
    lines = ["GET /v1/stream HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def client_frame(payload: bytes, opcode: int = 1) -> bytes:
    """A masked (with zeros) client frame."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


@contextlib.asynccontextmanager
async def serve(
    *, token_s: float = 0.001, kind: type[WebSocketGateway] = WebSocketGateway, **server: Any
) -> AsyncIterator[Served]:
    """A gateway on a free port, drained at the end; it must leave nothing running.  ``server``: its configuration."""
    config = Config(server=ServerConfig(port=0, **server))
    text, port = FakeText(token_s), FakePort()
    gateway = kind(None, config, text)
    gateway.bind()
    await gateway.start(port)
    task = asyncio.create_task(gateway.run(port))
    await asyncio.sleep(0)  # a task that is cancelled before its first step closes nothing
    try:
        yield Served(gateway, port, text)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await text.until_live(0)


async def receive(ws: ClientConnection) -> dict[str, Any]:
    """The next frame; F6: always text, always one object with a type."""
    text = await ws.recv()
    assert isinstance(text, str)
    frame = json.loads(text)
    assert isinstance(frame["type"], str)
    check_server_frame(frame)
    return frame  # type: ignore[no-any-return]


async def send(ws: ClientConnection, **frame: Any) -> None:
    await ws.send(json.dumps(frame))


async def generate(ws: ClientConnection, stream_id: str, prompt: str = "Hi", **fields: Any) -> None:
    await send(ws, type="generate", id=stream_id, prompt=prompt, **fields)


async def collect(ws: ClientConnection, *ids: str) -> dict[str, list[dict[str, Any]]]:
    """All frames of these streams, by id, up to the terminal of each; checks that each ``seq`` is gapless."""
    frames: dict[str, list[dict[str, Any]]] = {stream_id: [] for stream_id in ids}
    open_ids = set(ids)
    while open_ids:
        frame = await receive(ws)
        if frame.get("id") not in frames:
            continue
        mine = frames[frame["id"]]
        assert frame["seq"] == len(mine), frame
        assert frame["id"] in open_ids, f"after the terminal: {frame}"
        mine.append(frame)
        if frame["type"] in ("done", "error"):
            open_ids.discard(frame["id"])
    return frames


async def until_closed(ws: ClientConnection) -> tuple[list[dict[str, Any]], int]:
    """The frames up to the server's close, and its code."""
    frames: list[dict[str, Any]] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            frames.append(await receive(ws))
    assert ws.protocol.close_rcvd is not None, "cut without a close frame"
    return frames, ws.protocol.close_rcvd.code


def text_of(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta")
