"""``connect`` and what it gives: one task reads the socket and sorts the frames by generation.

When the connection is lost, generations that were started with ``retain_s`` go on over a new one, behind the last frame
that arrived: whoever iterates over their events notices nothing but a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from ...core.errors import MainspringError
from ..wire.llm_v1_frames import (
    PROTOCOL,
    DeltaFrame,
    DoneFrame,
    ErrorFrame,
    GoawayFrame,
    HelloFrame,
    PongFrame,
    ProgressFrame,
    ServerFrame,
    StartFrame,
    decode,
)

ATTEMPTS = 6  # to connect again after a loss
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 8.0  # between them: doubled each time, shortened at random
DEFAULT_PATH = "/v1/stream"
Event = StartFrame | ProgressFrame | DeltaFrame | DoneFrame
Opened = tuple[ClientConnection, HelloFrame]


class ServerError(MainspringError):
    """The server refused or could not finish: ``code`` as in its error frame, ``connection_lost`` if it is gone."""

    def __init__(self, code: str, message: str, param: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param, self.status = code, message, param, status


@contextlib.asynccontextmanager
async def connect(
    url: str, *, key: str | None = None, timeout_s: float = 10.0, reconnect: bool = True
) -> AsyncIterator[LLMClient]:
    """Open a connection to ``url`` (the path may be left out) and wait for the greeting.

    ``key`` is an API key.  With ``reconnect`` a lost connection is opened again: at once for generations that can be
    resumed, else with the next request.  Raises ServerError: code ``connection_lost`` when nobody there speaks the
    protocol, ``invalid_api_key`` for a wrong key.
    """
    parts = urlsplit(url)
    if parts.path in ("", "/"):
        url = urlunsplit(parts._replace(path=DEFAULT_PATH))

    async def reopen() -> Opened:
        return await _open(url, key, timeout_s)

    client = LLMClient(await reopen(), reopen if reconnect else None)
    reader = asyncio.create_task(client.read(), name="llm-client-reader")
    try:
        yield client
    finally:
        await client.close()
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader


async def _open(url: str, key: str | None, timeout_s: float) -> Opened:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        async with asyncio.timeout(timeout_s):
            socket = await open_socket(
                url,
                subprotocols=[Subprotocol(PROTOCOL)],
                compression=None,
                max_size=None,
                proxy=None,
                additional_headers=headers,
            )
            try:
                hello = decode(await socket.recv())
            except BaseException:
                socket.transport.abort()
                raise
    except InvalidStatus as error:
        status = error.response.status_code
        code = "invalid_api_key" if status == 401 else "connection_lost"
        raise ServerError(code, f"cannot connect to {url}: HTTP {status}", status=status) from error
    except InvalidURI as error:
        scheme, _, rest = url.partition("://")
        other = {"http": "ws", "https": "wss"}.get(scheme.lower())
        hint = f"; did you mean {other}://{rest}?" if other else "; an address begins with ws:// or wss://"
        raise ServerError("connection_lost", f"cannot connect to {url}{hint}", status=400) from error
    except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
        raise ServerError("connection_lost", f"cannot connect to {url}: {error or 'no answer in time'}") from error
    if not isinstance(hello, HelloFrame):
        socket.transport.abort()
        raise ServerError("connection_lost", f"{url} does not speak {PROTOCOL}")
    return socket, hello


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
        self._token: str | None = None
        self._last_seq = -1

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
        if isinstance(item, StartFrame) and isinstance(item.resume, str):
            self._token = item.resume
        if isinstance(item, StartFrame | DeltaFrame):
            self._last_seq = item.seq
        self._events.put_nowait(item)

    @property
    def resume_frame(self) -> dict[str, Any] | None:
        """What takes it up again on another connection; None if that is not possible."""
        if self._token is None:
            return None
        return {"type": "resume", "id": self.id, "token": self._token, "after": self._last_seq}

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

    def __init__(self, opened: Opened, reopen: Callable[[], Awaitable[Opened]] | None) -> None:
        self._socket, self.hello = opened
        self._reopen = reopen
        self._live: dict[str, Generation] = {}
        self._pongs: list[asyncio.Future[None]] = []
        self._ids = itertools.count(1)
        self._lost: ServerError | None = None
        self._usable = asyncio.Event()  # connected, or lost for good
        self._usable.set()
        self._wanted = asyncio.Event()  # somebody needs a new connection
        self._leaving = False  # the server wants us to connect again

    def generate(self, *, id: str | None = None, **fields: Any) -> Generation:  # noqa: A002 - the wire's own word
        """One generation with the fields of a ``generate`` frame (prompt or messages or token_ids, max_tokens, ...)."""
        return Generation(self, f"g{next(self._ids)}" if id is None else id, fields)

    async def ping(self) -> None:
        """Wait for one answer to one ping."""
        await self._connected()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pongs.append(answer)
        await self._send({"type": "ping"})
        await answer

    async def begin(self, generation: Generation, frame: dict[str, Any]) -> None:
        """For generations: register and send the request."""
        if generation.id in self._live:
            raise ServerError("duplicate_id", f"id {generation.id!r} is in use on this connection", "id")
        if self._leaving and not self._live and self._reopen is not None:
            self._usable.clear()
            await self._socket.close()
        await self._connected()
        self._live[generation.id] = generation
        await self._send(frame)

    async def send(self, frame: dict[str, Any]) -> None:
        """Send one frame.  Raises ServerError when the connection is gone."""
        await self._connected()
        await self._send(frame)

    async def close(self) -> None:
        """Close for good."""
        self._reopen = None
        await self._socket.close()

    async def read(self) -> None:
        """Sort incoming frames, over as many connections as it takes; then end every live generation."""
        while True:
            try:
                while True:
                    self._sort(decode(await self._socket.recv()))
            except ConnectionClosed as error:
                self._drop(_lost(error))
            if self._reopen is None:
                return
            if not self._live:
                await self._wanted.wait()
            if not await self._again():
                return

    async def _connected(self) -> None:
        if self._lost is not None and self._reopen is not None:
            self._lost = None
            self._usable.clear()
            self._wanted.set()
        await self._usable.wait()
        if self._lost is not None:
            raise self._lost

    async def _send(self, frame: dict[str, Any]) -> None:
        try:
            await self._socket.send(msgspec.json.encode(frame), text=True)
        except ConnectionClosed as error:
            raise _lost(error) from error

    def _drop(self, why: ServerError) -> None:
        """The connection is gone: end what can't be resumed."""
        for name, generation in list(self._live.items()):
            if self._reopen is None or generation.resume_frame is None:
                del self._live[name]
                generation.deliver(why)
        for answer in self._pongs:
            if not answer.done():
                answer.set_exception(why)
        self._pongs.clear()
        if self._live or not self._usable.is_set():
            self._usable.clear()
            self._wanted.set()
        else:
            self._lost = why

    async def _again(self) -> bool:
        """Connect again and resume; False after too many failures."""
        self._wanted.clear()
        wait_s = FIRST_WAIT_S
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(wait_s * random.uniform(0.5, 1))
                wait_s = min(2 * wait_s, MAX_WAIT_S)
            if self._reopen is None:
                break
            try:
                self._socket, self.hello = await self._reopen()
                for generation in self._live.values():
                    await self._socket.send(msgspec.json.encode(generation.resume_frame), text=True)
            except ServerError as error:
                self._lost = error
                if error.code != "connection_lost":
                    break
            except ConnectionClosed as error:
                self._lost = _lost(error)
            else:
                self._lost, self._leaving = None, False
                self._usable.set()
                return True
        why = self._lost or ServerError("connection_lost", "the client was closed")
        for generation in self._live.values():
            generation.deliver(why)
        self._live.clear()
        self._reopen, self._lost = None, why
        self._usable.set()
        return False

    def _sort(self, frame: ServerFrame | None) -> None:
        if isinstance(frame, GoawayFrame):
            self._leaving = True
        elif isinstance(frame, PongFrame):
            answer = self._pongs.pop(0) if self._pongs else None
            if answer is not None and not answer.done():
                answer.set_result(None)
        elif isinstance(frame, (StartFrame, ProgressFrame, DeltaFrame, DoneFrame, ErrorFrame)):
            name = frame.id if isinstance(frame.id, str) else ""
            generation = self._live.get(name)
            if isinstance(frame, (DoneFrame, ErrorFrame)):
                self._live.pop(name, None)
            if generation is not None:
                generation.deliver(frame)


def _lost(error: ConnectionClosed) -> ServerError:
    return ServerError("connection_lost", f"the connection to the server ended: {error}")
