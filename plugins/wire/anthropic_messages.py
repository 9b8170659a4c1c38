"""``/v1/messages`` without I/O: a body in, events or one message out.

What the engine cannot do is refused by the name of its field.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ...core.errors import ClientError, nearest
from ...core.messages import Finish, FinishReason
from ..schema import GenerateRequest, parse
from ..text.events import Accepted, Delta, TextEvent
from .llm_v1 import failure_of
from .outbox import Outbox, Source
from .responses_events import encode
from .responses_requests import message_of

MAX_SHOWN = 80
_NAMES = {"stop": "stop_sequences"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
}


class WantedMessage(NamedTuple):
    """What a body asks for."""

    request: GenerateRequest
    model: str | None
    stream: bool


def parse_message(body: bytes) -> WantedMessage:
    """One checked body.  Raises ClientError."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClientError("invalid_json", f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ClientError("invalid_request", "the body is a JSON object")
    for name, value in fields.items():
        shown = name[:MAX_SHOWN]
        if name in _MUST_BE and not _MUST_BE[name](value):
            raise ClientError("unsupported_parameter", f"{name} with this value is not offered here", name)
        if name not in _MUST_BE and name not in _KNOWN:
            raise ClientError("unsupported_parameter", f"unknown field {shown!r}{nearest(shown, _KNOWN)}", shown)
    stream, model, messages = fields.get("stream") or False, fields.get("model"), fields.get("messages")
    if not isinstance(stream, bool) or not isinstance(model, str | None):
        raise ClientError("invalid_request", "stream must be true or false, model a string", "model")
    if not isinstance(messages, list) or not messages:
        raise ClientError("invalid_request", "messages must be a list of at least one message", "messages")
    if fields.get("max_tokens") is None:
        raise ClientError("invalid_request", "max_tokens is missing", "max_tokens")
    chat = [message_of(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if fields.get("system"):
        chat.insert(0, message_of({"role": "system", "content": fields["system"]}, "system"))
    options = {name: fields[name] for name in _OPTIONS if fields.get(name) is not None}
    if fields.get("stop_sequences") is not None:
        options["stop"] = fields["stop_sequences"]
    try:
        return WantedMessage(parse({"messages": chat, **options}), model, stream)
    except ClientError as error:
        raise ClientError(error.code, error.message, _NAMES.get(error.param or "", error.param)) from error


def message_error(error: ClientError) -> dict[str, Any]:
    """An error in the shape of this API."""
    status = error.kind.status
    other = "rate_limit_error" if status == 429 else "overloaded_error" if status == 503 else "api_error"
    kind = _ERROR_TYPES.get(status, other if status >= 429 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessageStream(Source):
    """One message: events if it is streamed, else one object at its end."""

    __slots__ = ("_begun", "_model", "_num_input", "_texts", "_wanted")

    def __init__(self, outbox: Outbox, wanted: WantedMessage, model: str, clock: Callable[[], float]) -> None:
        super().__init__(outbox, "msg_" + secrets.token_hex(12), wanted.request, clock)
        self._wanted, self._model = wanted, wanted.model or model
        self._texts: list[str] = []
        self._num_input = 0
        self._begun = False

    def event(self, event: TextEvent) -> None:
        """Take one event of the text edge."""
        if isinstance(event, Accepted):
            self._num_input = event.num_prompt_tokens
            self._begin()
            return
        if isinstance(event, Delta):
            self._add(event.text, event.token_ids)
            return
        self.end_pause()
        self.finish = event.finish
        if not self._begun and event.finish.reason in (FinishReason.ERROR, FinishReason.DEADLINE):
            self.failure = failure_of(event.finish, event.rid)
            return
        self._begin()
        self._add(event.text, event.token_ids)
        self._end(event.finish, event.rid)

    def refuse(self, error: ClientError) -> None:
        """End it before the engine has seen it."""
        self.failure = error

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        return encode({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def _add(self, text: str, token_ids: tuple[int, ...]) -> None:
        if text and self._wanted.stream:
            self.add(text, token_ids)
        elif text:
            self._texts.append(text)

    def _begin(self) -> None:
        if not self._begun and self._wanted.stream:
            usage = {"input_tokens": self._num_input, "output_tokens": 0}
            self._put("message_start", message=self._message([], None, None, usage))
            self._put("content_block_start", index=0, content_block={"type": "text", "text": ""})
        self._begun = True

    def _end(self, finish: Finish, rid: str) -> None:
        if finish.reason is FinishReason.ERROR:
            error = failure_of(finish, rid)
            if self._wanted.stream:
                frame = encode(message_error(error))
                self.put(lambda _seq: frame)
            else:
                self.failure = error
            return
        matched = finish.stop if isinstance(finish.stop, str) else None
        reason = "max_tokens" if finish.reason is not FinishReason.STOP else "stop_sequence" if matched else "end_turn"
        counts = {"input_tokens": finish.usage.input, "cache_read_input_tokens": finish.usage.cached}
        counts["output_tokens"] = finish.usage.output
        if self._wanted.stream:
            self._put("content_block_stop", index=0)
            self._put("message_delta", delta={"stop_reason": reason, "stop_sequence": matched}, usage=counts)
            self._put("message_stop")
            return
        whole = encode(self._message([{"type": "text", "text": "".join(self._texts)}], reason, matched, counts))
        self.put(lambda _seq: whole)

    def _put(self, kind: str, **fields: Any) -> None:
        frame = encode({"type": kind, **fields})
        self.put(lambda _seq: frame)

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, matched: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        return {**head, "stop_reason": reason, "stop_sequence": matched, "usage": usage}


def _nothing(value: Any) -> bool:
    return value is None or value in ([], {}, "")


_OPTIONS = frozenset({
    "cache_salt", "deadline_ms", "ignore_eos", "max_tokens", "min_p", "min_tokens", "priority", "seed", "temperature",
    "tenant", "top_k", "top_p",
})  # fmt: skip
_KNOWN = _OPTIONS | {"messages", "metadata", "model", "stop_sequences", "stream", "system"}
_MUST_BE: dict[str, Callable[[Any], bool]] = {
    "container": _nothing,
    "context_management": _nothing,
    "mcp_servers": _nothing,
    "output_config": _nothing,
    "output_format": _nothing,
    "service_tier": lambda value: value in (None, "auto", "standard_only"),
    "thinking": lambda value: value is None or value == {"type": "disabled"},
    "tool_choice": lambda value: value is None or value == {"type": "none"},
    "tools": _nothing,
}
