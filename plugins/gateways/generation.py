"""One request of one client, from its frame to its end, whichever connection it is attached to in between."""

from __future__ import annotations

import asyncio

from ...core.errors import ClientError
from ...core.messages import Finish, FinishReason, Note, Timing, Usage
from ..logs import get
from ..text.events import Delta, Ended, TextEvent
from ..wire.llm_v1 import Stream
from ..wire.outbox import Source
from .api import Holder
from .hub import Hub
from .keys import Peer

PROGRESS_S = 1.0  # least time between two frames of progress
PROGRESS_MAX_S = 15.0  # a client hears something at least so often

_log = get("gateway")


class Generation:
    """Counted by the hub's admission from its creation to its end.  Implements ``wire.outbox.Flow``."""

    def __init__(
        self, hub: Hub, source: Source, peer: Peer, connection: Holder, received: float, num_bytes: int
    ) -> None:
        """``num_bytes`` of its frame.  Raises ClientError when the peer may have no more."""
        self.source, self.num_bytes, self.rid = source, num_bytes, ""
        self.connection: Holder | None = connection
        self._hub, self._peer, self._received = hub, peer, received
        self._cancelled = False
        self._pause_timer: asyncio.TimerHandle | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._state: tuple[str, int | None, int | None] = ("queued", None, None)
        self._told: tuple[str, int | None, int | None] | None = None
        self._told_at = 0.0
        self._loop = asyncio.get_running_loop()
        hub.admission.enter(peer)
        try:
            if (token := self.token) is not None:
                hub.shelf.add(peer, token, self)
        except ClientError:
            hub.admission.leave(peer)
            raise
        source.flow = self
        if source.request.deadline_ms is not None:  # the text edge takes over once it is open
            self._deadline_timer = self._loop.call_later(source.request.deadline_ms / 1e3, self._deadline)
        if isinstance(source, Stream) and source.progress:
            self._report()

    @property
    def token(self) -> str | None:
        return self.source.token if isinstance(self.source, Stream) else None

    @property
    def ended(self) -> bool:
        return self.source.finish is not None

    def open(self) -> None:
        """Hand the request to the text edge."""
        self._stop(self._deadline_timer)
        hub, source = self._hub, self.source
        at, tenant = self._received, self._peer.tenant
        # While the server drains the sessions and the POST surfaces refuse: what comes this far was taken before.
        self.rid = hub.text.open(source.request, self._sink, tenant=tenant, received=at, taken=True)
        hub.port.post(Note(self.rid, "gateway", {"name": "ws", "client_id": source.id}))
        if self._progress_timer is not None and not self.ended:
            hub.watchers[self.rid] = self

    def cancel(self, why: str) -> None:
        """Ask for its end, once; the terminal comes through the source like any other."""
        if self._cancelled or self.ended:
            return
        self._cancelled = True
        if not self.rid:
            self._end_unopened(FinishReason.CANCELLED)
            return
        self._hub.port.post(Note(self.rid, "gateway.cancel", {"why": why}))
        self._hub.text.cancel(self.rid)

    def detach(self) -> bool:
        """Its connection is gone: keep it for a resume if that was asked for and is possible.  False if not."""
        source = self.source
        if not isinstance(source, Stream) or source.token is None or source.seq == 0:
            return False
        self.connection = None
        source.detach()
        self._keep()
        return True

    def attached(self, connection: Holder) -> None:
        """A connection has taken it over."""
        self.connection = connection
        if not self.ended:
            self._stop(self._expiry_timer)

    # --- wire.outbox.Flow --------------------------------------------------------------------------------------------

    def pressure(self, paused: bool) -> None:
        self._stop(self._pause_timer)
        self._pause_timer = None
        self._hub.num_paused += 1 if paused else -1
        if paused:
            self._hub.text.pause((self.rid,))
            self._pause_timer = self._loop.call_later(self._hub.server.pause_max_s, self.cancel, "paused too long")
        else:
            self._hub.text.resume((self.rid,))

    def later(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._release)

    def _release(self) -> None:
        self.source.release()
        self._poke()

    # --- progress ----------------------------------------------------------------------------------------------------

    def prefill(self, done: int, total: int | None) -> None:
        """So many prompt tokens are computed or on their way."""
        total = self._state[2] if total is None else total
        self._state = ("prefill", done if total is None else min(done, total), total)

    def _report(self) -> None:
        now = self._loop.time()
        if self._state != self._told or now - self._told_at >= PROGRESS_MAX_S:
            assert isinstance(self.source, Stream)
            self._told, self._told_at = self._state, now
            self.source.news(*self._state)
            self._poke()
        self._progress_timer = self._loop.call_later(PROGRESS_S, self._report)

    def _end_progress(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None
            self._hub.watchers.pop(self.rid, None)

    # --- events ------------------------------------------------------------------------------------------------------

    def _sink(self, event: TextEvent) -> None:
        if self._progress_timer is not None and isinstance(event, Delta | Ended):
            self._end_progress()
        if isinstance(event, Ended):
            if self.source.paused:
                self._hub.num_paused -= 1
            self.source.event(event)
            self._end(event.rid, event.finish)
        else:
            self.source.event(event)
        self._poke()

    def _poke(self) -> None:
        if self.connection is not None:
            self.connection.poke()

    def _deadline(self) -> None:
        self._end_unopened(FinishReason.DEADLINE)

    def _end_unopened(self, reason: FinishReason) -> None:
        """It has never been given to the engine."""
        timing = Timing(self._received, finished=self._hub.port.now())
        self._sink(Ended("", "", (), Finish(reason, Usage(0, 0, 0), timing)))

    def _end(self, rid: str, finish: Finish) -> None:
        for timer in (self._pause_timer, self._deadline_timer):
            self._stop(timer)
        self._hub.admission.leave(self._peer)
        if self.connection is not None:
            self.connection.ended(self)
        self._keep()
        _log_request(self.source.id, self._peer.name, rid, finish)

    def _keep(self) -> None:
        """From now on for its ``retain_s``."""
        if (token := self.token) is not None:
            assert isinstance(self.source, Stream)
            self._stop(self._expiry_timer)
            self._expiry_timer = self._loop.call_later(self.source.retain_s, self._expire, token)

    def _expire(self, token: str) -> None:
        self._hub.shelf.drop(self._peer, token)
        if self.connection is None:
            self.cancel("not resumed in time")
        else:
            self.connection.forget(self)

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def _log_request(client_id: str, key: str, rid: str, finish: Finish) -> None:
    timing = finish.timing
    ttft_ms = None if timing.first_token is None else round((timing.first_token - timing.arrival) * 1e3, 1)
    _log.info(
        "request",
        rid=rid,
        client_id=client_id,
        key_name=key,
        reason=finish.reason.value,
        code=None if finish.failure is None else finish.failure.code,
        input_tokens=finish.usage.input,
        cached_tokens=finish.usage.cached,
        output_tokens=finish.usage.output,
        ttft_ms=ttft_ms,
    )
