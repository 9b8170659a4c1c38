"""The server's side of ``llm.v1`` without I/O: one ``Session`` per connection, one ``Stream`` per generation.

Parsed frames go in through ``Session.handle``, which answers with actions for the gateway; events of the text edge go
in through ``Stream.event``.  Frames come out of ``Session.pop``, in order, when the connection can take one.  A stream
that asked for ``retain_s`` keeps what was sent in a ring and can be attached to another session behind any of it.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from msgspec import UNSET

from ...core.errors import ClientError
from ...core.messages import Finish, FinishReason, Usage
from ..text.events import Accepted, Delta, TextEvent
from .actions import Action, Cancel, Generate, Resume
from .errors import BadFrames, failure_of, model_not_found
from .llm_v1_frames import (
    DeltaFrame,
    DoneFrame,
    ErrorFrame,
    GoawayFrame,
    HelloFrame,
    ProgressFrame,
    StartFrame,
    encode,
    encode_pong,
    timing_ms,
)
from .llm_v1_requests import (
    MAX_ID_CHARS,
    CancelFrame,
    ClientFrame,
    GenerateFrame,
    PingFrame,
    RefusedFrame,
    ResumeFrame,
    parse_frame,
)
from .outbox import Outbox, Source

MAX_RING_BYTES = 2**20  # of sent and unsent frames kept for a resume
RETRY_AFTER_MS = 1000  # the hint given with errors that are a matter of load
FEATURES = ("cancel", "coalesce", "multiplex", "ping", "progress", "resume", "return_token_ids")


class Stream(Source):
    """One generation: turns the text edge's events into frames with gapless ``seq``."""

    __slots__ = ("_model", "_replay", "_ring", "_ring_bytes", "_wall_clock", "progress", "retain_s", "token")

    def __init__(self, session: Session, frame: GenerateFrame) -> None:
        super().__init__(session, frame.id, frame.request, session.clock, frame.coalesce_ms / 1e3)
        self.progress, self.retain_s = frame.progress, frame.retain_s
        self.token = secrets.token_hex(16) if frame.retain_s else None  # names the stream to another connection
        self._model, self._wall_clock = session.model, session.wall_clock
        self._ring: deque[bytes] = deque()  # frames taken, the last one has seq - 1
        self._ring_bytes = 0
        self._replay: deque[bytes] = deque()  # frames taken before, to be sent again

    def event(self, event: TextEvent) -> None:
        """Take one event of the text edge; what it means for the peer is then waiting in ``Session.pop``."""
        if isinstance(event, Delta):
            self.add(event.text, event.token_ids)
            return
        if isinstance(event, Accepted):
            self.put(lambda seq: encode(self._start(seq, event.rid)))
            return
        self.end_pause()
        self.finish = event.finish
        self.add(event.text, event.token_ids)
        self._end(event.finish, event.rid)

    def refuse(self, error: ClientError) -> None:
        """End the stream before the engine has seen it."""
        self._terminal(lambda seq: encode(error_frame(error, self.id, seq)))

    def news(self, state: str, done: int | None = None, total: int | None = None) -> None:
        """Tell the peer how far it is, unless the first text is on its way."""
        if isinstance(self.outbox, Session):
            frame = ProgressFrame(
                id=self.id, state=state, done=UNSET if done is None else done, total=UNSET if total is None else total
            )
            self.outbox.queue(encode(frame))

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        tokens = token_ids if self.request.return_token_ids else UNSET
        return encode(DeltaFrame(id=self.id, seq=seq, text=text, n=count, tokens=tokens))

    # --- resume ------------------------------------------------------------------------------------------------------

    @property
    def limit_bytes(self) -> int:
        return MAX_RING_BYTES - self._ring_bytes if self.outbox is None else self.outbox.share_bytes

    @property
    def has_frames(self) -> bool:
        return bool(self._replay) or (bool(self._out) and not self._held)

    def take(self) -> bytes | None:
        if self._replay:
            return self._replay.popleft()
        frame = super().take()
        if self.token is not None and frame is not None:
            self._ring.append(frame)
            self._ring_bytes += len(frame)
            while self._ring_bytes > MAX_RING_BYTES and len(self._ring) > 1:
                self._ring_bytes -= len(self._ring.popleft())
        return frame

    def detach(self) -> None:
        """It has no connection any more; the engine may go on until the ring is full."""
        if isinstance(self.outbox, Session):
            self.outbox.leave(self)
        self.outbox, self.queued = None, False
        self.unblock()

    def rewind(self, after: int) -> None:
        """Send again what came behind frame ``after``.  Raises ClientError if that is not possible."""
        if after >= self.seq:
            raise ClientError(
                "invalid_request", f"after = {after}: the last frame sent had seq {self.seq - 1}", "after"
            )
        missing = self.seq - 1 - after
        if missing > len(self._ring):
            raise ClientError("resume_expired", f"frames behind {after} are no longer kept", "after")
        self._replay = deque(islice(self._ring, len(self._ring) - missing, None))

    # --- frames ------------------------------------------------------------------------------------------------------

    def _start(self, seq: int, rid: str) -> StartFrame:
        resume = UNSET if self.token is None else self.token
        created = int(self._wall_clock())
        return StartFrame(id=self.id, seq=seq, model=self._model, created=created, rid=rid, resume=resume)

    def _end(self, finish: Finish, rid: str) -> None:
        if finish.reason is FinishReason.ERROR or (
            finish.reason is FinishReason.DEADLINE and finish.timing.scheduled is None
        ):
            error = failure_of(finish, rid)
            self._terminal(lambda seq: encode(error_frame(error, self.id, seq, finish.usage)))
            return
        timing = {**timing_ms(finish.timing), "blocked": round(self.blocked_s * 1e3, 3)}
        stop = UNSET if finish.stop is None else finish.stop
        reason = finish.reason.value
        self._terminal(
            lambda seq: encode(
                DoneFrame(id=self.id, seq=seq, reason=reason, stop=stop, usage=finish.usage, timing=timing)
            )
        )

    def _terminal(self, frame: Callable[[int], bytes]) -> None:
        self.put(frame)
        if isinstance(self.outbox, Session):
            self.outbox.forget(self)


class Session(Outbox):
    """One connection.  ``streams`` are the live generations by client id."""

    def __init__(
        self,
        *,
        server: str,
        model: str,
        limits: Mapping[str, int],
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        aliases: Collection[str] = (),
        max_retain_s: float = 300.0,
    ) -> None:
        """``wall_clock`` gives Unix time, ``clock`` monotonic seconds; ``aliases`` are further names of the model."""
        super().__init__()
        self.model, self.wall_clock, self.clock = model, wall_clock, clock
        self.streams: dict[str, Stream] = {}
        self._names, self._max_retain_s = (model, *aliases), max_retain_s
        self._frames = BadFrames()
        self._closing = ""  # why no new generation is taken
        self._hello = HelloFrame(
            server=server,
            models=(model, *aliases),
            limits={**limits, "max_id_chars": MAX_ID_CHARS, "max_retain_s": int(max_retain_s)},
            features=FEATURES,
        )

    def hello(self) -> bytes:
        """The first frame of a connection."""
        return encode(self._hello)

    @staticmethod
    def parse(text: str | bytes) -> ClientFrame:
        """One client frame; pure, so it may run on any thread."""
        return parse_frame(text)

    def receive(self, text: str | bytes) -> list[Action]:
        """Take one text message: ``handle(parse(text))``."""
        return self.handle(parse_frame(text))

    def handle(self, frame: ClientFrame) -> list[Action]:
        """Take one parsed frame; returns what the gateway must do now.  Replies are waiting in ``pop``."""
        if isinstance(frame, RefusedFrame) and frame.id is None:
            return self._bad(frame.error)
        self._frames.good()
        if isinstance(frame, PingFrame):
            self.queue(encode_pong(frame.fields))
        elif isinstance(frame, RefusedFrame):
            self.refuse(frame.error, frame.id or "")
        elif isinstance(frame, CancelFrame):
            live = self.streams.get(frame.id)
            return [] if live is None else [Cancel(live)]
        elif isinstance(frame, ResumeFrame):
            if frame.id in self.streams:
                self.refuse(in_use(frame.id), frame.id)
                return []
            return [Resume(frame.id, frame.token, frame.after)]
        elif isinstance(frame, GenerateFrame):
            return self._generate(frame)
        return []

    def due(self) -> list[Action]:
        """Nothing: no generation waits for another."""
        return []

    def goaway(self, reason: str, grace_ms: int) -> None:
        """Take no new generation from now on, and say so."""
        if not self._closing:
            self._closing = "draining" if reason == "drain" else "at its greatest age"
            self.queue(encode(GoawayFrame(reason=reason, grace_ms=grace_ms)))

    def attach(self, stream: Stream, after: int) -> None:
        """Take over a stream behind its frame ``after``; its old session is told.  Raises ClientError."""
        stream.rewind(after)
        if isinstance(old := stream.outbox, Session):
            # Its end has not been sent there, and no other stream has its name there meanwhile.
            unfinished = stream.queued or old.streams.get(stream.id) is stream
            tell = unfinished and old is not self and old.streams.get(stream.id) in (None, stream)
            stream.detach()
            if tell:
                detached = ClientError("detached", "the stream was resumed on another connection")
                old.queue(encode(error_frame(detached, stream.id)))
        stream.outbox = self
        if stream.finish is None:
            self.streams[stream.id] = stream
            self.num_sources += 1
        if stream.has_frames:
            self.offer(stream)
        stream.unblock()

    def forget(self, stream: Stream) -> None:
        """``stream`` has had its terminal, so its id may be used again; for the session's streams."""
        if self.streams.get(stream.id) is stream:
            del self.streams[stream.id]
            self.num_sources -= 1

    leave = forget

    def farewell(self, reason: str) -> None:
        """Nothing: ``goaway`` has said it."""

    def refuse(self, error: ClientError, stream_id: str) -> None:
        """Answer a frame that starts nothing.  With the id of a live stream it would read as that stream's end."""
        self.queue(encode(error_frame(error) if stream_id in self.streams else error_frame(error, stream_id, 0)))

    def refuse_resume(self, error: ClientError, stream_id: str) -> None:
        """Answer a resume that attaches nothing; it has no ``seq``, since no frame of the stream was sent."""
        self.queue(encode(error_frame(error) if stream_id in self.streams else error_frame(error, stream_id)))

    def _generate(self, frame: GenerateFrame) -> list[Action]:
        try:
            if frame.id in self.streams:
                raise in_use(frame.id)
            if self._closing:
                raise ClientError("draining", f"the connection is {self._closing}; connect again for new generations")
            if frame.model is not None and frame.model not in self._names:
                raise model_not_found(frame.model, self._names)
            if frame.retain_s > self._max_retain_s:
                text = f"retain_s = {frame.retain_s:g}: at most {self._max_retain_s:g}"
                raise ClientError("invalid_request", text, "retain_s")
        except ClientError as error:
            self.refuse(error, frame.id)
            return []
        stream = self.streams[frame.id] = Stream(self, frame)
        self.num_sources += 1
        return [Generate(stream)]

    def _bad(self, error: ClientError) -> list[Action]:
        self.queue(encode(error_frame(error)))
        return self._frames.bad(error)


def in_use(stream_id: str) -> ClientError:
    return ClientError("duplicate_id", f"id {stream_id!r} is in use on this connection", "id")


def error_frame(
    error: ClientError, stream_id: str | None = None, seq: int | None = None, usage: Usage | None = None
) -> ErrorFrame:
    """``error`` as a frame: status from the one table of codes, a retry hint when load is the reason."""
    return ErrorFrame(
        id=UNSET if stream_id is None else stream_id,
        seq=UNSET if seq is None else seq,
        code=error.code,
        status=error.kind.status,
        message=error.message,
        param=UNSET if error.param is None else error.param,
        usage=UNSET if usage is None else usage,
        retry_after_ms=RETRY_AFTER_MS if error.kind.fault == "load" else UNSET,
    )
