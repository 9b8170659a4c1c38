"""The server's side of the Responses API over WebSocket, without I/O.

Requests with the same ``stream_id`` (or none: the default lane) form a lane: they are answered one after the other, in
order, errors included; lanes run side by side.  ``previous_response_id`` finds what this connection has answered.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ...core.errors import ClientError
from ...core.messages import Finish, FinishReason
from .actions import Action, Cancel, Generate
from .answers import Answer
from .errors import BadFrames, error_object, model_not_found
from .llm_v1_frames import timing_ms
from .outbox import Outbox
from .responses_events import (
    encode,
    error_event,
    event,
    message_item,
    response_object,
    steer_failed,
    text_part,
    usage_object,
)
from .responses_history import History, OwnResponses, Stored
from .responses_requests import (
    CancelEvent,
    ClientEvent,
    CreateEvent,
    Message,
    RefusedEvent,
    SteerEvent,
    parse_event,
    renamed,
)

MAX_LANES = 32  # named ones, for the life of a connection
Waiting = CreateEvent | RefusedEvent


class ResponseStream(Answer):
    """One response: turns the text edge's events into the API's events."""

    __slots__ = ("_created_at", "_head", "_item_id", "_messages", "_model", "_session", "create")

    def __init__(self, session: ResponsesSession, create: CreateEvent, history: tuple[Message, ...]) -> None:
        request, shows = create.request(history, session.max_context), create.generate
        name = "resp_" + secrets.token_hex(12)
        super().__init__(session, name, request, session.clock, streams=shows, keeps=shows)
        self.create, self._session = create, session
        self._messages = (*history, *create.messages)
        self._item_id = "msg_" + secrets.token_hex(12)
        self._created_at, self._model = int(session.wall_clock()), create.model or session.model
        at = f'"item_id":"{self._item_id}","output_index":0,"content_index":0,"delta":'
        self._head = (b'{"type":"response.output_text.delta","sequence_number":', ("," + at).encode())

    def refuse(self, error: ClientError) -> None:
        """Nothing of the response has been sent: an error event instead of it."""
        self._session.history.drop(self.create.previous)
        self.send(error_event(renamed(error), self.create.lane))
        self._session.over(self)

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        lane = self.create.lane
        tail = b',"logprobs":[]}' if lane is None else f',"logprobs":[],"stream_id":"{lane}"}}'.encode()
        return b"".join((self._head[0], str(seq).encode(), self._head[1], encode(text), tail))

    def begin(self) -> None:
        self._put("response.created", response=self._object("in_progress"))
        self._put("response.in_progress", response=self._object("in_progress"))
        if self.create.generate:
            self._put(
                "response.output_item.added", output_index=0, item=message_item(self._item_id, "in_progress", None)
            )
            self._put("response.content_part.added", **self._place(), part=text_part(""))

    def end(self, finish: Finish, failure: ClientError | None) -> None:
        session, text, create = self._session, self.text, self.create
        status = {FinishReason.STOP: "completed", FinishReason.ERROR: "failed"}.get(finish.reason, "incomplete")
        if not create.generate and finish.reason is FinishReason.LENGTH:
            status = "completed"
        output = []
        if create.generate:
            item = message_item(self._item_id, "completed" if status == "completed" else "incomplete", text)
            self._put("response.output_text.done", **self._place(), text=text, logprobs=[])
            self._put("response.content_part.done", **self._place(), part=text_part(text))
            self._put("response.output_item.done", output_index=0, item=item)
            output = [item]
        more: dict[str, Any] = {"output": output, "usage": usage_object(finish.usage)}
        more["timing"] = {**timing_ms(finish.timing), "blocked": round(self.blocked_s * 1e3, 3)}
        if status == "completed":
            more["completed_at"] = int(session.wall_clock())
        elif failure is not None:
            shown = error_object(failure)
            more["error"] = {"code": shown["code"], "message": shown["message"]}
        else:
            reason = "max_output_tokens" if finish.reason is FinishReason.LENGTH else finish.reason.value
            more["incomplete_details"] = {"reason": reason}
        body = self._object(status, **more)
        if failure is not None:
            session.history.drop(create.previous)
        else:
            answer = ({"role": "assistant", "content": text},) if create.generate else ()
            self._remember((*self._messages, *answer), body)
        self._put("response." + status, response=body)
        session.over(self)

    def _remember(self, messages: tuple[Message, ...], body: dict[str, Any]) -> None:
        self._session.history.add(self.id, messages, self.create.lane)
        if body["store"] and self._session.shelf is not None:
            self._session.shelf.add(self.id, Stored(messages, encode(body)))

    def _put(self, kind: str, **fields: Any) -> None:
        self.put(partial(self._frame, kind, fields))

    def _frame(self, kind: str, fields: dict[str, Any], seq: int) -> bytes:
        return event(kind, self.create.lane, sequence_number=seq, **fields)

    def _object(self, status: str, **more: Any) -> dict[str, Any]:
        echo = {**self.create.echo, "store": self.create.store and self._session.shelf is not None}
        return response_object(self.id, self._created_at, self._model, status, echo, **more)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}


class Lane:
    """Requests of one ``stream_id``; at most one of them runs."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Waiting, float]] = deque()  # each with the time at which it was read
        self.active: ResponseStream | None = None


class ResponsesSession(Outbox):
    """One connection."""

    def __init__(
        self,
        *,
        model: str,
        max_context: int,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        aliases: Collection[str] = (),
        max_waiting: int = 64,
        max_waiting_bytes: int = 32 * 2**20,
        shelf: OwnResponses | None = None,
    ) -> None:
        """``max_waiting`` requests, of ``max_waiting_bytes`` together, wait in all lanes; what is stored outlives the
        connection on the ``shelf``."""
        super().__init__()
        self.model, self.max_context, self.wall_clock, self.clock = model, max_context, wall_clock, clock
        self.shelf, self.history = shelf, History(shelf)
        self._names = (model, *aliases)
        self._max_waiting, self._max_waiting_bytes = max_waiting, max_waiting_bytes
        self._lanes: dict[str | None, Lane] = {None: Lane()}
        self._due: list[Action] = []
        self._num_waiting = self._num_bytes = 0
        self._frames = BadFrames()
        self._closing: ClientError | None = None  # why no new response is taken
        self._too_old: ClientError | None = None  # why those that wait are not begun either

    def hello(self) -> bytes | None:
        """Nothing: the client speaks first."""
        return None

    @staticmethod
    def parse(text: str | bytes) -> ClientEvent:
        """One client event; pure, so it may run on any thread."""
        return parse_event(text)

    def receive(self, text: str | bytes) -> list[Action]:
        """Take one text message: ``handle(parse(text))``."""
        return self.handle(parse_event(text))

    def handle(self, event: ClientEvent) -> list[Action]:
        """Take one parsed event; returns what the gateway must do now."""
        if isinstance(event, RefusedEvent) and not event.create:
            self.queue(error_event(event.error, event.lane))
            return self._frames.bad(event.error)
        self._frames.good()
        if isinstance(event, SteerEvent):
            self.queue(steer_failed(event.steer, event.lane))
        elif isinstance(event, CancelEvent):
            return self._cancel(event)
        else:
            self._wait(event)
        return self.due()

    def due(self) -> list[Action]:
        """What must be done because a response has ended."""
        due, self._due = self._due, []
        return due

    def goaway(self, reason: str, grace_ms: int) -> None:
        """Take no new response from now on; those that wait are answered if it is for a drain."""
        if reason == "drain":
            self._closing = ClientError("draining", "the server is draining; connect again for new responses")
        else:
            text = "the connection has reached its greatest age; connect again for new responses"
            self._closing = self._too_old = ClientError("websocket_connection_limit_reached", text)

    def farewell(self, reason: str) -> None:
        """Before it is closed for its age the peer is told why."""
        if reason == "max_age" and self._closing is not None:
            self.queue(error_event(self._closing))

    def over(self, stream: ResponseStream) -> None:
        """Its lane may go on; for the session's streams."""
        lane = self._lanes[stream.create.lane]
        if lane.active is stream:
            lane.active = None
            self.num_sources -= 1
            self._next(lane)

    @property
    def num_waiting(self) -> int:
        return self._num_waiting

    def _wait(self, event: Waiting) -> None:
        if self._closing is not None:
            event = RefusedEvent(self._closing, event.lane, create=True)  # its parent can still be continued elsewhere
        try:
            lane = self._lane(event.lane)
            num_bytes = event.num_bytes if isinstance(event, CreateEvent) else 0
            full = self._num_waiting >= self._max_waiting or self._num_bytes + num_bytes > self._max_waiting_bytes
            if full and (lane.active is not None or lane.waiting):
                raise ClientError("queue_full", f"{self._num_waiting} requests wait on this connection already")
        except ClientError as error:
            self.queue(error_event(error, event.lane))
            return
        self._num_waiting += 1
        self._num_bytes += num_bytes
        self.num_sources += 1
        lane.waiting.append((event, self.clock()))
        self._next(lane)

    def _lane(self, name: str | None) -> Lane:
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) > MAX_LANES:
                text = f"a connection may use {MAX_LANES} different stream_ids"
                raise ClientError("websocket_stream_limit_reached", text, "stream_id")
            lane = self._lanes[name] = Lane()
        return lane

    def _next(self, lane: Lane) -> None:
        while lane.active is None and lane.waiting:
            event, received = lane.waiting.popleft()
            self._num_waiting -= 1
            try:
                if isinstance(event, RefusedEvent):
                    self.history.drop(event.previous)
                    raise event.error
                self._num_bytes -= event.num_bytes
                stream = self._open(event)
            except ClientError as error:
                self.num_sources -= 1
                self.queue(error_event(renamed(error), event.lane))
                continue
            lane.active = stream
            self._due.append(Generate(stream, received, event.num_bytes))

    def _open(self, create: CreateEvent) -> ResponseStream:
        if self._too_old is not None:
            raise self._too_old
        try:
            if create.model is not None and create.model not in self._names:
                raise model_not_found(create.model, self._names)
            history = () if create.previous is None else self.history.find(create.previous)
            return ResponseStream(self, create, history)
        except ClientError:
            self.history.drop(create.previous)
            raise

    def _cancel(self, event: CancelEvent) -> list[Action]:
        lanes = self._lanes.values() if event.response_id is not None else [self._lanes.get(event.lane)]
        for lane in lanes:
            active = None if lane is None else lane.active
            if active is not None and event.response_id in (None, active.id):
                return [Cancel(active)]
        text = "no response with this id runs" if event.response_id else "nothing runs in this lane"
        param = "response_id" if event.response_id else "stream_id"
        self.queue(error_event(ClientError("not_found", text, param), event.lane))
        return []
