"""``connect`` and what it gives: one task reads the socket and sorts the frames by generation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from ...core.errors import MainspringError
from ..wire.llm_v1_frames import (
    PROTOCOL,
    DeltaFrame,
    DoneFrame,
    ErrorFrame,
    HelloFrame,
    PongFrame,
    ServerFrame,
    StartFrame,
    decode,
)

DEFAULT_PATH = "/v1/stream"
Event = StartFrame | DeltaFrame | DoneFrame


class ServerError(MainspringError):
    """The server refused or could not finish: ``code`` as in its error frame, ``connection_lost`` if it is gone."""

    def __init__(self, code: str, message: str, param: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.status = code, message, param, status


@contextlib.asynccontextmanager
async def connect(url: str, *, timeout_s: float = 10.0) -> AsyncIterator[LLMClient]:
    """Open a connection to ``url`` (the path may be left out) and wait for the greeting.

    Raises ServerError with code ``connection_lost`` when nobody there speaks the protocol.
    """
    parts = urlsplit(url)
    if parts.path in ("", "/"):
        url = urlunsplit(parts._replace(path=DEFAULT_PATH))
    try:
        async with asyncio.timeout(timeout_s):
            socket = await open_socket(
                url, subprotocols=[Subprotocol(PROTOCOL)], compression=None, max_size=None, proxy=None
            )
            try:
                hello = decode(await socket.recv())
            except BaseException:
                socket.transport.abort()
                raise
    except (OSError, TimeoutError, InvalidHandshake, InvalidURI, ConnectionClosed) as error:
        raise ServerError("connection_lost", f"cannot connect to {url}: {error or 'no answer in time'}") from error
    if not isinstance(hello, HelloFrame):
        socket.transport.abort()
        raise ServerError("connection_lost", f"{url} does not speak {PROTOCOL}")
    client = LLMClient(socket, hello)
    reader = asyncio.create_task(client.read(), name="llm-client-reader")
    try:
        yield client
    finally:
        await socket.close()
        await reader


class Generation:
    """Iterate over its events; the last one is a DoneFrame, or ServerError is raised.  Unknown frames are skipped.

    As ``async with`` it is cancelled on the way out if it is still running.
    """

    def __init__(self, client: LLMClient, stream_id: str, fields: dict[str, Any]) -> None:
        self.id = stream_id
        self.done: DoneFrame | None = None
        self._client, self._fields = client, fields
        self._events: asyncio.Queue[ServerFrame | ServerError] = asyncio.Queue()
        self._started = self._over = False

    async def cancel(self) -> None:
        """Ask the server to stop; the terminal event still comes."""
        if self._started and not self._over:
            await self._client.send({"type": "cancel", "id": self.id})

    async def start(self) -> None:
        """Send the request; iterating does it too."""
        if not self._started:
            self._started = True
            await self._client.begin(self, {"type": "generate", "id": self.id, **self._fields})

    def deliver(self, item: ServerFrame | ServerError) -> None:
        """For the client's reader."""
        self._events.put_nowait(item)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Event:
        if self._over:
            raise StopAsyncIteration
        await self.start()
        while True:
            item = await self._events.get()
            if isinstance(item, ErrorFrame):
                item = ServerError(item.code, item.message, item.param or None, item.status)
            if isinstance(item, ServerError):
                self._over = True
                raise item
            if isinstance(item, DoneFrame):
                self._over, self.done = True, item
            if isinstance(item, Event):
                return item

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ServerError):
            await self.cancel()


class LLMClient:
    """One open connection; ``hello`` is the server's greeting (models, limits)."""

    def __init__(self, socket: ClientConnection, hello: HelloFrame) -> None:
        self.hello = hello
        self._socket = socket
        self._live: dict[str, Generation] = {}
        self._pongs: list[asyncio.Future[None]] = []
        self._ids = itertools.count(1)
        self._lost: ServerError | None = None

    def generate(self, *, id: str | None = None, **fields: Any) -> Generation:  # noqa: A002 - the wire's own word
        """One generation with the fields of a ``generate`` frame (prompt or messages or token_ids, max_tokens, ...)."""
        return Generation(self, f"g{next(self._ids)}" if id is None else id, fields)

    async def ping(self) -> None:
        """Wait for one answer to one ping."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(answer)
        await self.send({"type": "ping"})
        await answer

    async def begin(self, generation: Generation, frame: dict[str, Any]) -> None:
        """For generations: register and send the request."""
        if generation.id in self._live:
            raise ServerError("duplicate_id", f"id {generation.id!r} is in use on this connection", "id")
        self._live[generation.id] = generation
        await self.send(frame)

    async def send(self, frame: dict[str, Any]) -> None:
        """Send one frame.  Raises ServerError when the connection is gone."""
        try:
            if self._lost is None:
                await self._socket.send(msgspec.json.encode(frame), text=True)
        except ConnectionClosed as error:
            self._lost = _lost(error)
        if self._lost is not None:
            raise self._lost

    async def read(self) -> None:
        """Sort incoming frames until the connection ends, then end every live generation."""
        try:
            while True:
                self._sort(decode(await self._socket.recv()))
        except ConnectionClosed as error:
            self._lost = self._lost or _lost(error)
            for generation in self._live.values():
                generation.deliver(self._lost)
            for answer in self._pongs:
                if not answer.done():
                    answer.set_exception(self._lost)

    def _sort(self, frame: ServerFrame | None) -> None:
        if isinstance(frame, PongFrame):
            answer = self._pongs.pop(0) if self._pongs else None
            if answer is not None and not answer.done():
                answer.set_result(None)
        elif isinstance(frame, (StartFrame, DeltaFrame, DoneFrame, ErrorFrame)):
            name = frame.id if isinstance(frame.id, str) else ""
            generation = self._live.get(name)
            if isinstance(frame, (DoneFrame, ErrorFrame)):
                self._live.pop(name, None)
            if generation is not None:
                generation.deliver(frame)


def _lost(error: ConnectionClosed) -> ServerError:
    return ServerError("connection_lost", f"the connection to the server ended: {error}")
