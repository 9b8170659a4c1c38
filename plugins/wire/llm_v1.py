"""The server's side of ``llm.v1`` without I/O: one ``Session`` per connection, one ``Stream`` per generation.

Parsed frames go in through ``Session.handle``, which answers with actions for the gateway; events of the text edge go
in through ``Stream.event``.  Frames come out of ``Session.pop``, in order, when the connection can take one.  Deltas
become bytes only there: while the peer reads slowly, new text of a stream joins its delta that is still waiting, so
the queue holds at most one delta per stream and nothing is ever dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import UNSET

from ...core.errors import ERROR_KINDS, ClientError
from ...core.messages import Finish, FinishReason, Usage
from ..schema import GenerateRequest
from ..text.events import Accepted, Delta, TextEvent
from .llm_v1_frames import DeltaFrame, DoneFrame, ErrorFrame, HelloFrame, StartFrame, encode, encode_pong, timing_ms
from .llm_v1_requests import MAX_ID_CHARS, CancelFrame, ClientFrame, PingFrame, RefusedFrame, parse_frame

MAX_BAD_FRAMES = 10  # in a row, then the connection is closed
RETRY_AFTER_MS = 1000  # the hint given with errors that are a matter of load


class Generate(NamedTuple):
    """Hand ``stream.request`` to the text edge and its events to ``stream.event``."""

    stream: Stream


class Cancel(NamedTuple):
    """Cancel this live stream; its terminal comes as an event like any other."""

    stream: Stream


class Close(NamedTuple):
    """Send what is waiting, then close the connection."""

    code: int
    reason: str


Action = Generate | Cancel | Close


class Stream:
    """One generation of a connection: turns the text edge's events into frames with gapless ``seq``."""

    __slots__ = ("_parts", "_reserved", "_seq", "_session", "_tokens", "finish", "id", "request")

    def __init__(self, session: Session, stream_id: str, request: GenerateRequest) -> None:
        self._session, self.id, self.request = session, stream_id, request
        self.finish: Finish | None = None  # set by the terminal event
        self._seq = 0  # of the next frame
        self._reserved: int | None = None  # seq of the delta that waits in the queue
        self._parts: list[str] = []  # its text so far
        self._tokens: list[int] = []  # its ids so far, and those of tokens that have given no text yet

    def event(self, event: TextEvent) -> None:
        """Take one event of the text edge; what it means for the peer is then waiting in ``Session.pop``."""
        if isinstance(event, Accepted):
            session = self._session
            start = StartFrame(
                id=self.id, seq=self._next(), model=session.model, created=int(session.wall_clock()), rid=event.rid
            )
            session.queue(encode(start))
            return
        self._add(event.text, event.token_ids)
        if not isinstance(event, Delta):
            self.finish = event.finish
            self._end(event.finish, event.rid)

    def refuse(self, error: ClientError) -> None:
        """End the stream before the engine has seen it."""
        self._terminal(error_frame(error, self.id, self._next()))

    def take_delta(self) -> bytes:
        """The waiting delta as a frame; called once it is its turn to be sent."""
        assert self._reserved is not None
        tokens = tuple(self._tokens)
        frame = DeltaFrame(
            id=self.id,
            seq=self._reserved,
            text="".join(self._parts),
            n=len(tokens),
            tokens=tokens if self.request.return_token_ids else UNSET,
        )
        self._reserved = None
        self._parts.clear()
        self._tokens.clear()
        return encode(frame)

    def _add(self, text: str, token_ids: tuple[int, ...]) -> None:
        self._tokens.extend(token_ids)
        if text:
            self._parts.append(text)
        worth_sending = text or (token_ids and self.request.return_token_ids)
        if worth_sending and self._reserved is None:
            self._reserved = self._next()
            self._session.queue(self)

    def _end(self, finish: Finish, rid: str) -> None:
        if finish.reason is FinishReason.ERROR:
            failure = finish.failure
            code, text, param = (
                (failure.code, failure.message, failure.param)
                if failure is not None
                else ("server_error", "the engine failed", None)
            )
            if ERROR_KINDS[code].fault == "engine":
                text = f"{text} (request {rid})"
            error = ClientError(code, text, param)
            self._terminal(error_frame(error, self.id, self._next(), finish.usage))
            return
        done = DoneFrame(
            id=self.id,
            seq=self._next(),
            reason=finish.reason.value,
            stop=UNSET if finish.stop is None else finish.stop,
            usage=finish.usage,
            timing=timing_ms(finish.timing),
        )
        self._terminal(done)

    def _terminal(self, frame: DoneFrame | ErrorFrame) -> None:
        self._session.forget(self)
        self._session.queue(encode(frame))

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1


class Session:
    """One connection.  ``streams`` are the live generations by client id; ``backlog_bytes`` of finished frames wait."""

    def __init__(
        self,
        *,
        server: str,
        model: str,
        limits: Mapping[str, int],
        wall_clock: Callable[[], float],
    ) -> None:
        self.model, self.wall_clock = model, wall_clock
        self.streams: dict[str, Stream] = {}
        self.backlog_bytes = 0
        self._queue: deque[bytes | Stream] = deque()
        self._bad_frames = 0
        hello = HelloFrame(
            server=server,
            models=(model,),
            limits={**limits, "max_id_chars": MAX_ID_CHARS},
            features=("cancel", "multiplex", "ping", "return_token_ids"),
        )
        self.queue(encode(hello))

    def receive(self, text: str | bytes) -> list[Action]:
        """Take one text message: ``handle(parse_frame(text))``."""
        return self.handle(parse_frame(text))

    def handle(self, frame: ClientFrame) -> list[Action]:
        """Take one parsed frame; returns what the gateway must do now.  Replies are waiting in ``pop``."""
        if isinstance(frame, PingFrame):
            try:
                pong = encode_pong(frame.fields)
            except ValueError as error:
                return self._bad(ClientError("invalid_request", f"the ping can't be echoed: {error}"))
            self._bad_frames = 0
            self.queue(pong)
            return []
        if isinstance(frame, RefusedFrame):
            if frame.id is None:
                return self._bad(frame.error)
            self._bad_frames = 0
            self._refuse(frame.error, frame.id)
            return []
        if isinstance(frame, CancelFrame):
            self._bad_frames = 0
            live = self.streams.get(frame.id)
            return [] if live is None else [Cancel(live)]
        self._bad_frames = 0
        if frame.id in self.streams:
            self._refuse(ClientError("duplicate_id", f"id {frame.id!r} is in use on this connection", "id"), frame.id)
            return []
        stream = self.streams[frame.id] = Stream(self, frame.id, frame.request)
        return [Generate(stream)]

    def pop(self) -> bytes | None:
        """The next frame to send, or None."""
        if not self._queue:
            return None
        head = self._queue.popleft()
        if isinstance(head, Stream):
            return head.take_delta()
        self.backlog_bytes -= len(head)
        return head

    def queue(self, item: bytes | Stream) -> None:
        """Append a finished frame, or a stream whose delta is to be sent; for the session's streams."""
        self._queue.append(item)
        if isinstance(item, bytes):
            self.backlog_bytes += len(item)

    def forget(self, stream: Stream) -> None:
        """``stream`` has had its terminal, so its id may be used again; for the session's streams."""
        del self.streams[stream.id]

    def _refuse(self, error: ClientError, stream_id: str) -> None:
        """Answer a generate that starts nothing.  With the id of a live stream it would read as that stream's end."""
        self.queue(encode(error_frame(error) if stream_id in self.streams else error_frame(error, stream_id, 0)))

    def _bad(self, error: ClientError) -> list[Action]:
        self.queue(encode(error_frame(error)))
        self._bad_frames += 1
        if self._bad_frames < MAX_BAD_FRAMES:
            return []
        return [Close(1008, f"{MAX_BAD_FRAMES} bad frames in a row, the last: {error.code}")]


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
