"""The server's side of the Realtime API, text only, without I/O: one conversation per connection.

One response at a time may write to the conversation; others run beside it with ``conversation: "none"`` and are told
apart by their ``metadata``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from ...core.errors import ClientError
from ...core.messages import Finish, FinishReason
from ..schema import GenerateRequest
from .actions import Action, Cancel, Generate
from .answers import Answer, io_counts
from .errors import BadFrames, error_object, model_not_found
from .outbox import Outbox
from .reading import MAX_SHOWN
from .realtime_requests import Event, Refused, parse_event, response_options, session_changes, to_request
from .responses_events import encode
from .responses_requests import message_of

ROOT = "root"  # the place before the first item
MAX_CHARS = 2**24  # of a conversation
MAX_ITEMS = 4096  # of a conversation; each new one is looked for among them
MAX_ITEM_ID_CHARS = 64  # chosen by the client, kept with the item and repeated beside it and the next


class RealtimeStream(Answer):
    """One response: turns the text edge's events into the API's events."""

    __slots__ = ("_event_id", "_item_id", "_session", "metadata", "writes")

    def __init__(
        self, session: RealtimeSession, request: GenerateRequest, writes: bool, metadata: Any, event_id: str | None
    ) -> None:
        """``writes``: to the conversation."""
        super().__init__(session, "resp_" + secrets.token_hex(12), request, session.clock)
        self.writes, self.metadata = writes, metadata
        self._session, self._event_id, self._item_id = session, event_id, session.new_id("item")

    def refuse(self, error: ClientError) -> None:
        """Nothing of the response has been sent: an error event instead of it."""
        self.send(self._session.error(error, self._event_id))
        self._session.over(self)

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        return self._session.encode("response.output_text.delta", **self._place(), delta=text)

    def begin(self) -> None:
        item = self._item("in_progress", None)
        self._put("response.created", response=self._object("in_progress"))
        self._put("response.output_item.added", response_id=self.id, output_index=0, item=item)
        if self.writes:
            self._put("conversation.item.added", previous_item_id=self._session.last_item_id, item=item)
        self._put("response.content_part.added", **self._place(), part={"type": "text", "text": ""})

    def end(self, finish: Finish, failure: ClientError | None) -> None:
        text, session = self.text, self._session
        status, details = "completed", None
        if failure is not None:
            error = error_object(failure)
            status, details = "failed", {"type": "failed", "error": {"type": error["type"], "code": error["code"]}}
        elif finish.reason is FinishReason.CANCELLED:
            status, details = "cancelled", {"type": "cancelled", "reason": "client_cancelled"}
        elif finish.reason is not FinishReason.STOP:
            reason = "max_output_tokens" if finish.reason is FinishReason.LENGTH else "deadline"
            status, details = "incomplete", {"type": "incomplete", "reason": reason}
        item = self._item("completed" if status == "completed" else "incomplete", text)
        self._put("response.output_text.done", **self._place(), text=text)
        self._put("response.content_part.done", **self._place(), part={"type": "text", "text": text})
        self._put("response.output_item.done", response_id=self.id, output_index=0, item=item)
        if self.writes:
            self._put("conversation.item.done", previous_item_id=session.last_item_id, item=item)
            session.append(item)
        done = self._object(status, status_details=details, output=[item], usage=io_counts(finish.usage))
        self._put("response.done", response=done)
        session.over(self)

    def _put(self, kind: str, **fields: Any) -> None:
        make = partial(self._session.encode, kind, **fields)
        self.put(lambda _seq: make())

    def _object(self, status: str, **more: Any) -> dict[str, Any]:
        head: dict[str, Any] = {"id": self.id, "object": "realtime.response", "status": status}
        head |= {"status_details": None, "output": []}
        conversation = self._session.conversation_id if self.writes else None
        tail = {
            "usage": None,
            "metadata": self.metadata,
            "conversation_id": conversation,
            "output_modalities": ["text"],
        }
        return {**head, **tail, **more}

    def _item(self, status: str, text: str | None) -> dict[str, Any]:
        return item_object(self._item_id, status, "assistant", text)

    def _place(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self._item_id, "output_index": 0, "content_index": 0}


class RealtimeSession(Outbox):
    """One connection."""

    def __init__(
        self,
        *,
        model: str,
        max_context: int,
        clock: Callable[[], float],
        names: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.clock, self.conversation_id = clock, "conv_" + secrets.token_hex(12)
        self.items: list[dict[str, Any]] = []
        self._max_context, self._names = max_context, tuple(dict.fromkeys((model, *names)))
        self._session: dict[str, Any] = {
            "id": "sess_" + secrets.token_hex(12),
            "object": "realtime.session",
            "type": "realtime",
            "model": model,
            "output_modalities": ["text"],
            "instructions": "",
            "max_output_tokens": "inf",
            "tools": [],
            "tool_choice": "auto",
        }
        self._active: dict[str, RealtimeStream] = {}
        self._writer: RealtimeStream | None = None
        self._frames, self._num_ids, self._num_chars = BadFrames(), 0, 0
        self._closing: ClientError | None = None

    def hello(self) -> bytes | None:
        """``session.created``, which most clients wait for."""
        return self.encode("session.created", session=self._session)

    @staticmethod
    def parse(text: str | bytes) -> Event | Refused:
        """One client event; pure, so it may run on any thread."""
        return parse_event(text)

    def receive(self, text: str | bytes) -> list[Action]:
        """Take one text message: ``handle(parse(text))``."""
        return self.handle(parse_event(text))

    def handle(self, event: Event | Refused) -> list[Action]:
        """Take one parsed event; returns what the gateway must do now."""
        if isinstance(event, Refused):
            self.queue(self.error(event.error, event.event_id))
            return self._frames.bad(event.error) if event.bad else []
        self._frames.good()
        try:
            return self._handlers[event.kind](self, event) or []
        except ClientError as error:
            self.queue(self.error(error, event.event_id))
            return []

    def due(self) -> list[Action]:
        """Nothing: no response waits for another."""
        return []

    def goaway(self, reason: str, grace_ms: int) -> None:
        """Take no new response from now on."""
        code, why = ("draining", "is draining") if reason == "drain" else ("overloaded", "ends old connections")
        self._closing = ClientError(code, f"the server {why}; connect again for new responses")

    def farewell(self, reason: str) -> None:
        """Nothing: the close code says it."""

    @property
    def last_item_id(self) -> str | None:
        return self.items[-1]["id"] if self.items else None

    def new_id(self, kind: str) -> str:
        """An id that no other object of this session has."""
        self._num_ids += 1
        return f"{kind}_{self._num_ids:06}"

    def encode(self, kind: str, **fields: Any) -> bytes:
        """An event of this type with the next ``event_id``."""
        return encode({"type": kind, "event_id": self.new_id("event"), **fields})

    def error(self, error: ClientError, event_id: str | None) -> bytes:
        """An ``error`` event about the client's event ``event_id``."""
        return self.encode("error", error={**error_object(error), "event_id": event_id})

    def append(self, item: dict[str, Any]) -> None:
        """An answer becomes part of the conversation; for the session's streams."""
        self.items.append(item)
        self._num_chars += _num_chars(item)

    def over(self, stream: RealtimeStream) -> None:
        """It has had its terminal; for the session's streams."""
        self._active.pop(stream.id, None)
        self.num_sources = len(self._active)
        if self._writer is stream:
            self._writer = None

    def _update(self, event: Event) -> None:
        changes = session_changes(event.fields)
        if (model := changes.get("model")) is not None and model not in self._names:
            raise model_not_found(str(model), self._names, "session.model")
        self._session = {**self._session, **{name: value for name, value in changes.items() if value is not None}}
        self.queue(self.encode("session.updated", session=self._session))

    def _create_item(self, event: Event) -> None:
        given, before = event.fields.get("item"), event.fields.get("previous_item_id")
        message = message_of(given, "item")
        wanted = given.get("id") if isinstance(given, dict) else None
        if wanted is not None and (not isinstance(wanted, str) or not 0 < len(wanted) <= MAX_ITEM_ID_CHARS):
            text = f"item.id must be a string of 1 to {MAX_ITEM_ID_CHARS} characters"
            raise ClientError("invalid_request", text, "item.id")
        if any(item["id"] == wanted for item in self.items):
            raise ClientError("invalid_request", "item.id must be a string that no other item has", "item.id")
        place = len(self.items)
        if before is not None:
            place = 0 if before == ROOT else 1 + self._find(before, "previous_item_id")
        self._check_room(len(message["content"]), "item")
        item = item_object(wanted or self.new_id("item"), "completed", message["role"], message["content"])
        previous = self.items[place - 1]["id"] if place else None
        self.items.insert(place, item)
        self._num_chars += _num_chars(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            self.queue(self.encode(kind, previous_item_id=previous, item=item))

    def _check_room(self, num_chars: int, param: str) -> None:
        """Raises ClientError if one more item with so many characters is too much for the conversation."""
        if len(self.items) >= MAX_ITEMS or self._num_chars + num_chars > MAX_CHARS:
            text = f"a conversation holds {MAX_ITEMS} items with {MAX_CHARS} characters"
            raise ClientError("context_length_exceeded", text, param)

    def _delete_item(self, event: Event) -> None:
        item = self.items.pop(self._find(event.fields.get("item_id"), "item_id"))
        self._num_chars -= _num_chars(item)
        self.queue(self.encode("conversation.item.deleted", item_id=item["id"]))

    def _retrieve_item(self, event: Event) -> None:
        item = self.items[self._find(event.fields.get("item_id"), "item_id")]
        self.queue(self.encode("conversation.item.retrieved", item=item))

    def _find(self, item_id: Any, param: str) -> int:
        for place, item in enumerate(self.items):
            if item["id"] == item_id:
                return place
        raise ClientError("not_found", f"no item has the id {str(item_id)[:MAX_SHOWN]!r}", param)

    def _create_response(self, event: Event) -> list[Action]:
        options = response_options(event.fields)
        if self._closing is not None:
            raise self._closing
        writes = options.get("conversation", "auto") == "auto"
        if writes and self._writer is not None:
            text = "a response is being written to the conversation"
            raise ClientError("conversation_already_has_active_response", text)
        if writes:
            self._check_room(1, "response.conversation")  # how long the answer will be nobody knows
        given = options.get("input")
        items = self.items if given is None else [self._input_item(item, index) for index, item in enumerate(given)]
        messages = [message_of(item, "input") for item in items]
        instructions = options.get("instructions")
        request = to_request(
            self._session["instructions"] if instructions is None else instructions,
            messages,
            options.get("max_output_tokens") or self._session["max_output_tokens"],
            self._max_context,
        )
        stream = RealtimeStream(self, request, writes, options.get("metadata"), event.event_id)
        self._active[stream.id] = stream
        self.num_sources = len(self._active)
        if writes:
            self._writer = stream
        return [Generate(stream)]

    def _input_item(self, item: Any, index: int) -> Any:
        if isinstance(item, dict) and item.get("type") == "item_reference":
            return self.items[self._find(item.get("id"), f"response.input[{index}].id")]
        return item

    def _cancel(self, event: Event) -> list[Action]:
        wanted = event.fields.get("response_id")
        stream = self._writer if wanted is None else self._active.get(wanted) if isinstance(wanted, str) else None
        if stream is None and wanted is None:
            stream = next(iter(self._active.values()), None)
        if stream is not None:
            return [Cancel(stream)]
        raise ClientError("response_cancel_not_active", "Cancellation failed: no active response found")

    _handlers: dict[str, Callable[[Any, Event], list[Action] | None]] = {
        "session.update": _update,
        "conversation.item.create": _create_item,
        "conversation.item.delete": _delete_item,
        "conversation.item.retrieve": _retrieve_item,
        "response.create": _create_response,
        "response.cancel": _cancel,
    }


def item_object(item_id: str, status: str, role: str, text: str | None) -> dict[str, Any]:
    """A message of the conversation; ``text`` None before there is any."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [] if text is None else [{"type": kind, "text": text}]
    head = {"id": item_id, "object": "realtime.item", "type": "message", "status": status}
    return {**head, "role": role, "content": content}


def _num_chars(item: dict[str, Any]) -> int:
    """Of its text."""
    return sum(len(part["text"]) for part in item["content"])
