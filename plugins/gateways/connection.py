"""One WebSocket connection of the native protocol: a reader, a writer, and the generations between them.

The reader never waits for the model or for a send, so a cancel or a disconnect is seen at once.  Events of the text
edge are taken synchronously and only wake the writer.  The library never times out a peer that stopped reading (its
``send``, its keepalive and its ``close`` all wait in the same place), so a watchdog gives every send a deadline and
then aborts the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from ...core.edge import KernelPort
from ...core.errors import ClientError
from ...core.messages import Finish, Note
from ..logs import get
from ..text.events import Ended, TextEvent
from ..wire.llm_v1 import Cancel, Close, Generate, Session, Stream
from ..wire.llm_v1_requests import ClientFrame, parse_frame
from .api import TextApi

THREAD_PARSE_CHARS = 64 * 1024  # frames from this size on are parsed on a thread
MAX_BACKLOG_BYTES = 2**20  # replies waiting beyond this: the reader reads no further frame until they are sent
CLOSE_TIMEOUT_S = 5.0  # for flushing and the closing handshake together, then the transport is aborted

_log = get("gateway")


class Connection:
    """Serves one client until it goes; ``run`` is its whole life."""

    def __init__(
        self, ws: ServerConnection, session: Session, text: TextApi, port: KernelPort, write_deadline_s: float
    ) -> None:
        self._ws, self._session, self._text, self._port = ws, session, text, port
        self._write_deadline_s = write_deadline_s
        self._rids: dict[Stream, str] = {}  # live generations
        self._cancelled: set[str] = set()  # those of them whose end has been asked for
        self._wake = asyncio.Event()  # there may be something to send
        self._idle = asyncio.Event()  # nothing waits and nothing is being sent, or nothing will be sent any more
        self._writing = True  # until the writer has ended
        self._sending_since: float | None = None  # loop time at which the present send began
        self._watchdog: asyncio.TimerHandle
        self._slow = False  # the write deadline has cut it

    async def run(self) -> None:
        """Read until the peer closes, fails or must be closed; every live generation is then cancelled."""
        writer = asyncio.create_task(self._write(), name="ws-writer")
        try:
            close = await self._read()
            if close is not None:
                await self.close(close.code, close.reason)
        except Exception:  # noqa: BLE001 - whatever it was, only this connection ends, with a legal close code
            _log.error("connection_failed", connection=str(self._ws.id), exc_info=True)
            await self.close(1011, "internal error")
        finally:
            self._cancel_all()
            writer.cancel()
            self._ws.transport.abort()
            code = self._ws.close_code
            facts = {"close_code": None if code is None else int(code), "slow": self._slow}
            _log.debug("connection_closed", connection=str(self._ws.id), **facts)

    async def flush(self) -> None:
        """Return once everything that waits has been sent, or nothing will be sent any more."""
        while not self._idle.is_set():
            await self._idle.wait()

    async def close(self, code: int, reason: str, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Cancel what runs, send what waits (terminals included), then close with ``code``; abort after the timeout."""
        self._cancel_all()
        try:
            async with asyncio.timeout(timeout_s):
                while self._writing and (self._rids or not self._idle.is_set()):
                    self._idle.clear()
                    await self._idle.wait()
                await self._ws.close(code, reason)
        except TimeoutError:
            self._ws.transport.abort()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> Close | None:
        while True:
            try:
                message = await self._ws.recv()
            except ConnectionClosed:
                return None
            if isinstance(message, bytes):
                return Close(1003, "only text frames are understood here")
            received = self._port.now()
            big = len(message) >= THREAD_PARSE_CHARS
            frame = await asyncio.to_thread(parse_frame, message) if big else parse_frame(message)
            close = self._handle(frame, received)
            self._poke()
            if close is not None:
                return close
            while self._session.backlog_bytes > MAX_BACKLOG_BYTES and self._writing:
                self._idle.clear()
                await self._idle.wait()

    def _handle(self, frame: ClientFrame, received: float) -> Close | None:
        for action in self._session.handle(frame):
            if isinstance(action, Close):
                return action
            if isinstance(action, Cancel):
                self._cancel(self._rids[action.stream], "client")
            else:
                self._generate(action, received)
        return None

    def _generate(self, action: Generate, received: float) -> None:
        stream = action.stream
        if self._port.draining:
            stream.refuse(ClientError("draining", "the server is draining; connect again for new generations"))
            return
        rid = self._text.open(stream.request, self._sink(stream), received=received)
        self._port.post(Note(rid, "gateway", {"name": "ws", "client_id": stream.id}))
        if stream.finish is None:
            self._rids[stream] = rid

    def _sink(self, stream: Stream) -> Callable[[TextEvent], None]:
        def sink(event: TextEvent) -> None:
            stream.event(event)
            if isinstance(event, Ended):
                self._rids.pop(stream, None)
                self._cancelled.discard(event.rid)
                _log_request(stream, event.rid, event.finish)
            self._poke()

        return sink

    def _cancel_all(self) -> None:
        for rid in list(self._rids.values()):
            self._cancel(rid, "disconnect")

    def _cancel(self, rid: str, why: str) -> None:
        if rid not in self._cancelled:
            self._cancelled.add(rid)
            self._port.post(Note(rid, "gateway.cancel", {"why": why}))
            self._text.cancel(rid)

    # --- writing -----------------------------------------------------------------------------------------------------

    def _poke(self) -> None:
        if self._writing:
            self._idle.clear()
            self._wake.set()

    async def _write(self) -> None:
        ws, pop, loop = self._ws, self._session.pop, asyncio.get_running_loop()
        self._watch()
        try:
            while True:
                self._wake.clear()
                while (frame := pop()) is not None:
                    if ws.state is not State.OPEN:  # a send would wait for the closing handshake
                        return
                    self._sending_since = loop.time()
                    await ws.send(frame, text=True)
                self._sending_since = None
                self._idle.set()
                await self._wake.wait()
        except ConnectionClosed:
            pass
        except Exception:  # noqa: BLE001 - the reader must hear of it
            _log.error("writer_failed", connection=str(ws.id), exc_info=True)
            ws.transport.abort()
        finally:
            # The reader hears of the end as well, but perhaps only when the closing handshake has timed out.
            self._writing = False
            self._idle.set()
            self._watchdog.cancel()
            self._cancel_all()

    def _watch(self) -> None:
        """Abort the connection when one send takes too long: one timer, since a time-out per send would cost as much
        as half the send."""
        loop, since = asyncio.get_running_loop(), self._sending_since
        due = (loop.time() if since is None else since) + self._write_deadline_s
        if due > loop.time():
            self._watchdog = loop.call_at(due, self._watch)
        else:
            self._slow = True
            self._ws.transport.abort()


def _log_request(stream: Stream, rid: str, finish: Finish) -> None:
    timing = finish.timing
    ttft_ms = None if timing.first_token is None else round((timing.first_token - timing.arrival) * 1e3, 1)
    _log.info(
        "request",
        rid=rid,
        client_id=stream.id,
        reason=finish.reason.value,
        code=None if finish.failure is None else finish.failure.code,
        input_tokens=finish.usage.input,
        cached_tokens=finish.usage.cached,
        output_tokens=finish.usage.output,
        ttft_ms=ttft_ms,
    )
