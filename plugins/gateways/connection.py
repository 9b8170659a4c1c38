"""One WebSocket connection: a reader, turns at writing, and the generations between, whatever protocol it speaks.

The reader never waits for the model or for a send, so a cancel or a disconnect is seen at once.  Events of the text
edge are taken synchronously and only ask for a turn.  The library never times out a peer that stopped reading (its
``send``, its keepalive and its ``close`` all wait in the same place), so a watchdog waits for room to write until a
deadline and then aborts the transport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from websockets.exceptions import ConnectionClosed

from ...core.errors import ClientError
from ..logs import get
from ..wire.actions import Action, Close, Generate, Resume
from ..wire.llm_v1 import Session as NativeSession
from ..wire.llm_v1 import Stream
from ..wire.outbox import Source
from .api import ServerSession
from .generation import Generation
from .guarded import GuardedConnection
from .hub import Hub
from .keys import Peer

THREAD_PARSE_CHARS = 64 * 1024  # frames from this size on are parsed on a thread
BATCH_BYTES = 16 * 1024  # frames are written together until they have so many
MAX_BACKLOG_BYTES = 2**20  # replies waiting beyond this: the reader reads no further frame until they are sent
CLOSE_TIMEOUT_S = 5.0  # for flushing and the closing handshake together, then the transport is aborted

_log = get("gateway")


class Connection:
    """Serves one client until it goes; ``run`` is its whole life."""

    def __init__(self, ws: GuardedConnection, session: ServerSession, hub: Hub, peer: Peer, max_age_s: float) -> None:
        """``max_age_s`` 0: it may live for ever."""
        self._ws, self._session, self._hub, self._peer = ws, session, hub, peer
        self._loop = asyncio.get_running_loop()
        self._generations: dict[Source, Generation] = {}  # attached and not ended
        self._waiting: deque[Generation] = deque()  # those of them that are not open yet
        self._kept: set[Generation] = set()  # ended, but could be resumed elsewhere
        self._num_open = 0
        self._num_bytes = 0  # of the frames of all of them
        self._idle = asyncio.Event()  # nothing waits and there is room, or nothing will be sent any more
        self._idle.set()
        self._writing = True  # as long as anything may be sent
        self._in_turn = False  # it stands in the queue of those who have something to send
        self._closer: asyncio.Task[None] | None = None
        self._watchdog: asyncio.TimerHandle | None = None  # while there is no room to write
        self._leaving = False  # it is being closed
        self._slow = False  # the write deadline has cut it
        self._active_at = self._loop.time()
        self._retire_at = self._active_at + max_age_s if max_age_s else None
        self._leave_by: float | None = None  # once it has been told to go
        self._patrol_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Read until the peer closes, fails or must be closed; what can't be resumed is then cancelled."""
        self._ws.when_closing(self._closing)
        self._ws.when_writable(self._writable)
        try:
            if (hello := self._session.hello()) is not None:
                await self._ws.send(hello, text=True)
            if self._hub.port.draining:  # since it was let in
                self.goaway("drain", self._hub.server.drain_s)
            self._patrol()
            close = await self._read()
            if close is not None:
                await self._close_unread(close.code, close.reason)
        except ConnectionClosed:
            pass
        except Exception:  # noqa: BLE001 - whatever it was, only this connection ends, with a legal close code
            _log.error("connection_failed", connection=str(self._ws.id), exc_info=True)
            await self._close_unread(1011, "internal error")
        finally:
            self._stop_writing()
            for timer in (self._patrol_timer, self._abort_timer):
                if timer is not None:
                    timer.cancel()
            self._ws.transport.abort()
            code = self._ws.close_code
            facts = {"close_code": None if code is None else int(code), "slow": self._slow}
            _log.debug("connection_closed", connection=str(self._ws.id), **facts)

    @property
    def num_waiting(self) -> int:
        """Requests taken from the peer that have not been given to the engine."""
        return len(self._waiting) + self._session.num_waiting

    def goaway(self, reason: str, grace_s: float) -> None:
        """Take nothing new; the peer is told to connect again."""
        self._session.goaway(reason, int(grace_s * 1e3))
        self.poke()

    async def flush(self) -> None:
        """Return once everything that waits has been sent, or nothing will be sent any more."""
        while not self._idle.is_set():
            await self._idle.wait()

    async def close(self, code: int, reason: str, timeout_s: float = CLOSE_TIMEOUT_S, keep: bool = True) -> None:
        """Cancel what runs (``keep``: but what can be resumed), send what waits (terminals included), then close with
        ``code``; abort after the timeout."""
        self._leaving = True
        self._leave(reason, keep)
        try:
            async with asyncio.timeout(timeout_s):
                while self._writing and (self._generations or not self._idle.is_set()):
                    self._idle.clear()
                    await self._idle.wait()
                await self._ws.close(code, reason)
        except TimeoutError:
            self._ws.transport.abort()

    def _closing(self) -> None:
        """The closing handshake has begun: the work ends now, the connection as the peer closes it, or soon."""
        self._leaving = True  # frames that came before it are still to be read, and must start nothing
        self._stop_writing()
        self._abort_timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._ws.transport.abort)

    async def _close_unread(self, code: int, reason: str) -> None:
        """Close without handling what the peer still sends; unless it is read, its answer is never seen."""
        reading = asyncio.create_task(self._discard(), name="ws-discard")
        try:
            await self.close(code, reason)
        finally:
            reading.cancel()

    async def _discard(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self._ws.recv()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> Close | None:
        parse = self._session.parse
        while True:
            try:
                message = await self._ws.recv()
            except ConnectionClosed:
                return None
            if isinstance(message, bytes):
                return Close(1003, "only text frames are understood here")
            received = self._hub.port.now()
            self._active_at = self._loop.time()
            big = len(message) >= THREAD_PARSE_CHARS
            frame = await asyncio.to_thread(parse, message) if big else parse(message)
            close = self._act(self._session.handle(frame), received, len(message))
            if close is not None:
                return close
            self.poke()
            while self._session.backlog_bytes > MAX_BACKLOG_BYTES and self._writing and not self._leaving:
                self._idle.clear()
                await self._idle.wait()

    def _act(self, actions: list[Action], received: float, num_bytes: int) -> Close | None:
        while actions:
            for action in actions:
                if isinstance(action, Close):
                    return action
                if isinstance(action, Generate):
                    at = received if action.received is None else action.received
                    self._generate(action.stream, at, num_bytes if action.num_bytes is None else action.num_bytes)
                elif isinstance(action, Resume):
                    self._resume(action)
                elif (running := self._generations.get(action.stream)) is not None:
                    running.cancel("client")
            actions = self._session.due()
        return None

    def _generate(self, source: Source, received: float, num_bytes: int) -> None:
        hub = self._hub
        try:
            if self._leaving:
                raise ClientError("draining", "the connection is being closed; connect again for new generations")
            wait = self._num_open >= hub.server.max_running_per_connection
            total = self._num_bytes + num_bytes if self._generations else 0
            if wait or total > hub.server.max_pending_bytes:
                hub.admission.check_queue(len(self._waiting), total)
            generation = Generation(hub, source, self._peer, self, received, num_bytes)
        except ClientError as error:
            source.refuse(error)
            return
        self._generations[source] = generation
        self._num_bytes += num_bytes
        if wait:
            self._waiting.append(generation)
            hub.admission.num_queued += 1
        else:
            self._num_open += 1
            generation.open()

    def _resume(self, action: Resume) -> None:
        session, hub = self._session, self._hub
        assert isinstance(session, NativeSession)
        try:
            generation = hub.shelf.find(self._peer, action.token)
            source, old = generation.source, generation.connection
            assert isinstance(source, Stream)
            if source.id != action.id:
                raise ClientError("resume_unknown", "no stream with this id has this token", "id")
            session.attach(source, action.after)
        except ClientError as error:
            session.refuse_resume(error, action.id)
            return
        if isinstance(old, Connection):
            old.release(generation)
            old.forget(generation)
            old.poke()
        generation.attached(self)
        if generation.ended:
            self._kept.add(generation)
        else:
            self._generations[source] = generation
            self._num_open += 1

    def release(self, generation: Generation) -> None:
        """It is not this connection's any more."""
        if self._generations.pop(generation.source, None) is None:
            return
        self._num_bytes = max(0, self._num_bytes - generation.num_bytes)
        self._active_at = self._loop.time()
        if generation in self._waiting:
            self._waiting.remove(generation)
            self._hub.admission.num_queued -= 1
        else:
            self._num_open -= 1
        while self._waiting and self._num_open < self._hub.server.max_running_per_connection:
            self._hub.admission.num_queued -= 1
            self._num_open += 1
            self._waiting.popleft().open()

    def ended(self, generation: Generation) -> None:
        """It has had its terminal."""
        self.release(generation)
        if generation.token is not None:
            self._kept.add(generation)
        if self._writing:
            self._act(self._session.due(), self._hub.port.now(), 0)

    def forget(self, generation: Generation) -> None:
        """It can't be resumed any more."""
        self._kept.discard(generation)

    def _leave(self, why: str, keep: bool = True) -> None:
        """End what can't be resumed, the waiting ones first so that none of them is opened."""
        for generation in [*self._waiting, *self._generations.values()]:
            if keep and generation.detach():
                self.release(generation)
            else:
                generation.cancel(why)
        while self._kept:
            self._kept.pop().detach()

    # --- age and idleness --------------------------------------------------------------------------------------------

    def _patrol(self) -> None:
        """Close an old or idle connection; called when there may be a reason."""
        now, server = self._loop.time(), self._hub.server
        busy = bool(self._session.num_sources)
        due = []
        if self._leave_by is not None:
            if not busy or now >= self._leave_by:
                return self._retire(1012, "greatest age of a connection reached", "max_age")
            due.append(min(self._leave_by, now + 1.0))
        elif self._retire_at is not None:
            if now >= self._retire_at:
                self._leave_by = now + server.drain_s
                self.goaway("max_age", server.drain_s)
                due.append(now + min(1.0, server.drain_s))
            else:
                due.append(self._retire_at)
        if server.idle_timeout_s:
            idle_at = (now if busy else self._active_at) + server.idle_timeout_s
            if now >= idle_at:
                return self._retire(1001, "idle for too long", "idle")
            due.append(idle_at)
        if due:
            self._patrol_timer = self._loop.call_at(min(due), self._patrol)
        return None

    def _retire(self, code: int, reason: str, why: str) -> None:
        self._session.farewell(why)
        self.poke()
        self._closer = asyncio.create_task(self.close(code, reason), name="ws-closer")

    # --- writing -----------------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """There may be something to send."""
        if self._writing:
            self._idle.clear()
            if not self._in_turn and self._watchdog is None:
                self._in_turn = True
                self._hub.turns.add(self)

    def write(self) -> bool:
        """Its turn: send a batch.  True if it wants another one."""
        self._in_turn = False
        if not self._writing:
            return False
        try:
            batch, last = self._batch()
            if batch and not self._ws.write_texts(batch):
                self._watchdog = self._loop.call_later(self._hub.server.write_deadline_s, self._cut)
            elif last:
                self._idle.set()
            else:
                self._in_turn = True
        except Exception:  # noqa: BLE001 - whatever it was, only this connection ends
            _log.error("writer_failed", connection=str(self._ws.id), exc_info=True)
            self._ws.transport.abort()
            self._stop_writing()
        return self._in_turn

    def _batch(self) -> tuple[list[bytes], bool]:
        """The next frames, as many as go into one write; and whether they are the last that wait."""
        batch, size, pop = list[bytes](), 0, self._session.pop
        while size < BATCH_BYTES:
            if (frame := pop()) is None:
                return batch, True
            batch.append(frame)
            size += len(frame)
        return batch, False

    def _writable(self) -> None:
        """The peer has read so much that there is room again."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
            self.poke()

    def _cut(self) -> None:
        """There was no room for the whole of the write deadline."""
        self._slow = True
        self._hub.num_slow_closed += 1
        self._ws.transport.abort()

    def _stop_writing(self) -> None:
        """Nothing will be sent any more; what runs for this peer only ends."""
        self._writing = False
        self._idle.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None
        self._leave("disconnect")
