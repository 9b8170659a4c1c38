"""What waits to be sent on one connection, without I/O: whole frames, and answers whose text is joined while it waits.

An ``Outbox`` belongs to a connection, a ``Source`` is one answer.  Sources take turns, one frame each.  New text of a
source joins the delta that is still waiting, so the queue holds at most one delta per source; when that grows beyond
the source's share, ``Flow.pressure`` asks for the generation to be paused.  Nothing is ever dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...core.errors import ClientError
from ...core.messages import Finish
from ..schema import GenerateRequest
from ..text.events import TextEvent

MAX_SOURCE_BYTES = 64 * 1024  # of one answer's waiting text, then it is paused
MAX_OUTBOX_BYTES = 256 * 1024  # shared by the answers of one connection
MAX_PARTS = 256  # of a text that waits, each a string of its own with 50 bytes around it; then they are joined
SOURCE_BYTES = 512  # what the frames around a text are counted as
TOKEN_BYTES = 36  # an id that waits: an integer object and its place in a list

#: Makes a finished frame when its turn has come, from its sequence number.
Frame = Callable[[int], bytes]


class Flow(Protocol):
    """What a source asks of the one who runs the generation."""

    def pressure(self, paused: bool) -> None:
        """Stop generating, or go on."""

    def later(self, delay_s: float) -> None:
        """Call ``release`` after ``delay_s`` seconds."""


class Source:
    """One answer on its way out.  A subclass turns the text edge's events into ``put`` and ``add``."""

    __slots__ = (
        "_clock",
        "_count",
        "_held",
        "_num_texts",
        "_out",
        "_parts",
        "_paused_at",
        "_tokens",
        "_with_ids",
        "blocked_s",
        "coalesce_s",
        "failure",
        "finish",
        "flow",
        "id",
        "outbox",
        "queued",
        "request",
        "seq",
        "waiting_bytes",
    )

    def __init__(
        self,
        outbox: Outbox | None,
        name: str,
        request: GenerateRequest,
        clock: Callable[[], float],
        coalesce_s: float = 0,
    ) -> None:
        """``clock`` in seconds; ``coalesce_s`` is the least time between two deltas."""
        self.outbox, self.id, self.request, self.coalesce_s = outbox, name, request, coalesce_s
        self.flow: Flow | None = None
        self.finish: Finish | None = None  # set by the terminal event
        self.failure: ClientError | None = None  # where an answer has no frame for it: it was refused or has failed
        self.queued = False  # it stands in its outbox
        self.seq = 0  # of the next frame to be taken
        self.waiting_bytes = 0
        self.blocked_s = 0.0  # time spent paused
        self._clock, self._with_ids = clock, request.return_token_ids
        self._out: deque[Frame | None] = deque()  # None: the delta that waits
        self._parts: list[str] = []
        self._tokens: list[int] = []
        self._count = 0  # tokens since the last delta
        self._num_texts = 0
        self._held = False  # a delta waits for its time
        self._paused_at: float | None = None

    def event(self, event: TextEvent) -> None:
        """Take one event of the text edge."""
        raise NotImplementedError

    def refuse(self, error: ClientError) -> None:
        """End it before the engine has seen it."""
        raise NotImplementedError

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        """The frame of a delta with this sequence number: ``text``, of ``count`` tokens; their ids, if asked for."""
        raise NotImplementedError

    @property
    def limit_bytes(self) -> int:
        """Waiting text beyond this pauses the generation."""
        return MAX_SOURCE_BYTES if self.outbox is None else self.outbox.share_bytes

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def put(self, frame: Frame) -> None:
        """Queue a finished frame behind what waits; a text that was held back goes first, at once."""
        self._held = False
        self._out.append(frame)
        self._offer()

    def add(self, text: str, token_ids: tuple[int, ...]) -> None:
        """Add to the delta that waits, or begin one."""
        self._count += len(token_ids)
        if self._with_ids and token_ids:
            self._tokens.extend(token_ids)
            self.waiting_bytes += TOKEN_BYTES * len(token_ids)
        if text:
            self._parts.append(text)
            if len(self._parts) > MAX_PARTS:
                self._parts[:] = ["".join(self._parts)]
            self.waiting_bytes += len(text) if text.isascii() else 3 * len(text)
        elif not self._tokens:
            return
        if not self._out or self._out[-1] is not None:
            self._out.append(None)
            if self.coalesce_s and self._num_texts and self.flow is not None and len(self._out) == 1:
                self._held = True
                self.flow.later(self.coalesce_s)
        self._offer()
        if self.waiting_bytes > self.limit_bytes and self._paused_at is None and self.finish is None:
            self._pause()

    def release(self) -> None:
        """The time of a delta that was held back has come."""
        if self._held:
            self._held = False
            self._offer()

    @property
    def has_frames(self) -> bool:
        return bool(self._out) and not self._held

    def take(self) -> bytes | None:
        """The next frame, or None."""
        if not self.has_frames:
            return None
        make = self._out.popleft()
        seq, self.seq = self.seq, self.seq + 1
        return self._delta(seq) if make is None else make(seq)

    def unblock(self) -> None:
        """Go on generating if the waiting text is small again, or has somewhere to go."""
        if self._paused_at is not None and self.waiting_bytes <= self.limit_bytes:
            self.end_pause()
            if self.finish is None and self.flow is not None:
                self.flow.pressure(False)

    def end_pause(self) -> None:
        """Book the time of a pause that is over."""
        if self._paused_at is not None:
            self.blocked_s += self._clock() - self._paused_at
            self._paused_at = None

    def _pause(self) -> None:
        if self.flow is not None:
            self._paused_at = self._clock()
            self.flow.pressure(True)

    def _delta(self, seq: int) -> bytes:
        frame = self.encode_delta(seq, "".join(self._parts), self._count, tuple(self._tokens))
        self._parts.clear()
        self._tokens.clear()
        self._count = self.waiting_bytes = 0
        self._num_texts += 1
        if self._paused_at is not None:
            self.unblock()
        return frame

    def _offer(self) -> None:
        if self.outbox is not None and not self.queued and self.has_frames:
            self.outbox.offer(self)


class Outbox:
    """The frames of one connection in the order in which they are to be sent."""

    def __init__(self) -> None:
        self._queue: deque[bytes | Source] = deque()
        self._bytes = 0
        self._num_sources = 0
        self.share_bytes = MAX_SOURCE_BYTES  # of text of one answer that may wait here

    @property
    def backlog_bytes(self) -> int:
        """About what waits apart from text: replies to the peer's own frames."""
        return self._bytes + SOURCE_BYTES * len(self._queue)

    @property
    def num_sources(self) -> int:
        """Answers that may still send something."""
        return self._num_sources

    @num_sources.setter
    def num_sources(self, number: int) -> None:
        self._num_sources = number
        self.share_bytes = min(MAX_SOURCE_BYTES, MAX_OUTBOX_BYTES // max(1, number))

    @property
    def num_waiting(self) -> int:
        """Requests that are held back here until others have ended."""
        return 0

    def pop(self) -> bytes | None:
        """The next frame to send, or None."""
        queue = self._queue
        while queue:
            head = queue.popleft()
            if isinstance(head, bytes):
                self._bytes -= len(head)
                return head
            if head.outbox is not self:
                continue  # taken over by another connection
            head.queued = False
            frame = head.take()
            if head.has_frames:
                head.queued = True
                # One that has ended goes on to its end: its name may be in use again by one behind it.
                (queue.append if head.finish is None else queue.appendleft)(head)
            if frame is not None:
                return frame
        return None

    def queue(self, frame: bytes) -> None:
        """Append a frame that belongs to no answer."""
        self._queue.append(frame)
        self._bytes += len(frame)

    def offer(self, source: Source) -> None:
        """``source`` has something to send."""
        source.queued = True
        self._queue.append(source)
