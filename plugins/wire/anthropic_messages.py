"""``/v1/messages`` without I/O: a body in, events or one message out.

What the engine cannot do is refused by the name of its field.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from ...core.errors import ClientError
from ...core.messages import Finish, FinishReason
from ..schema import GenerateRequest, parse
from .answers import Answer
from .outbox import Outbox
from .reading import COMMON_OPTIONS, Check, check_fields, one_of, read_object, typed
from .responses_events import encode
from .responses_requests import message_of

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
    fields = read_object(body, "the body")
    check_fields(fields, _KNOWN, _MUST_BE)
    stream = typed(fields, "stream", bool, "true or false") or False
    model, messages = typed(fields, "model", str, "a string"), fields.get("messages")
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


class MessageStream(Answer):
    """One message: events if it is streamed, else one object at its end."""

    __slots__ = ("_model",)

    def __init__(self, outbox: Outbox, wanted: WantedMessage, model: str, clock: Callable[[], float]) -> None:
        name = "msg_" + secrets.token_hex(12)
        super().__init__(outbox, name, wanted.request, clock, streams=wanted.stream, keeps=not wanted.stream)
        self._model = wanted.model or model

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        return encode({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def begin(self) -> None:
        if self.streams:
            usage = {"input_tokens": self.num_input, "output_tokens": 0}
            self._put("message_start", message=self._message([], None, None, usage))
            self._put("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def end(self, finish: Finish, failure: ClientError | None) -> None:
        if failure is not None:
            if self.streams:
                self.send(encode(message_error(failure)))
            else:
                self.failure = failure
            return
        matched = finish.stop if isinstance(finish.stop, str) else None
        reason = "max_tokens" if finish.reason is not FinishReason.STOP else "stop_sequence" if matched else "end_turn"
        counts = {"input_tokens": finish.usage.input, "cache_read_input_tokens": finish.usage.cached}
        counts["output_tokens"] = finish.usage.output
        if self.streams:
            self._put("content_block_stop", index=0)
            self._put("message_delta", delta={"stop_reason": reason, "stop_sequence": matched}, usage=counts)
            self._put("message_stop")
            return
        self.send(encode(self._message([{"type": "text", "text": self.text}], reason, matched, counts)))

    def _put(self, kind: str, **fields: Any) -> None:
        self.send(encode({"type": kind, **fields}))

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, matched: str | None, usage: dict[str, int]
    ) -> dict[str, Any]:
        head = {"id": self.id, "type": "message", "role": "assistant", "model": self._model, "content": content}
        return {**head, "stop_reason": reason, "stop_sequence": matched, "usage": usage}


_OPTIONS = COMMON_OPTIONS | {"max_tokens"}
_KNOWN = _OPTIONS | {"messages", "metadata", "model", "stop_sequences", "stream", "system"}
_NOTHING = one_of([], {}, "")
_MUST_BE: dict[str, Check] = {
    "container": _NOTHING,
    "context_management": _NOTHING,
    "mcp_servers": _NOTHING,
    "output_config": _NOTHING,
    "output_format": _NOTHING,
    "service_tier": one_of("auto", "standard_only"),
    "thinking": one_of({"type": "disabled"}),
    "tool_choice": one_of({"type": "none"}),
    "tools": _NOTHING,
}
