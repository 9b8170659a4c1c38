"""``/v1/chat/completions`` and ``/v1/completions`` without I/O: a body in, chunks or one object out.

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
from .responses_events import encode, error_object
from .responses_requests import message_of

CHAT, TEXT = "chat.completion", "text_completion"
MAX_SHOWN = 80


class Wanted(NamedTuple):
    """What a body asks for.  ``kind``: CHAT or TEXT."""

    kind: str
    request: GenerateRequest
    model: str | None
    stream: bool
    include_usage: bool


def parse_body(kind: str, body: bytes, max_context: int) -> Wanted:
    """One checked body.  Raises ClientError."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClientError("invalid_json", f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ClientError("invalid_request", "the body is a JSON object")
    options: dict[str, Any] = {}
    known = _OPTIONS | set(_MUST_BE) | _COMMON | {"messages" if kind == CHAT else "prompt"}
    for name, value in fields.items():
        if name in _MUST_BE and not _MUST_BE[name](value):
            raise ClientError("unsupported_parameter", f"{name} with this value is not offered here", name)
        if name in _OPTIONS and value is not None:
            options[name] = value
        elif name not in known:
            shown = name[:MAX_SHOWN]
            raise ClientError("unsupported_parameter", f"unknown field {shown!r}{nearest(shown, known)}", shown)
    limit = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    default = max_context if kind == CHAT else 16  # what the API does without a limit
    options["max_tokens"] = default if fields.get(limit) is None else fields[limit]
    stream, model = fields.get("stream") or False, fields.get("model")
    if not isinstance(stream, bool):
        raise ClientError("invalid_request", "stream must be true or false", "stream")
    if not isinstance(model, str | None):
        raise ClientError("invalid_request", "model must be a string", "model")
    usage = fields.get("stream_options") or {}
    if not isinstance(usage, dict):
        raise ClientError("invalid_request", "stream_options must be an object", "stream_options")
    try:
        request = parse(options | (_chat(fields) if kind == CHAT else _text(fields)))
    except ClientError as error:
        if error.param != "max_tokens" or limit == "max_tokens":
            raise
        raise ClientError(error.code, error.message.replace("max_tokens", limit), limit) from error
    return Wanted(kind, request, model, stream, bool(usage.get("include_usage")))


def _chat(fields: dict[str, Any]) -> dict[str, Any]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ClientError("invalid_request", "messages must be a list of at least one message", "messages")
    for index, message in enumerate(messages):
        if isinstance(message, dict) and (message.get("tool_calls") or message.get("role") == "tool"):
            raise ClientError(
                "unsupported_parameter", f"messages[{index}]: tools are not offered", f"messages[{index}]"
            )
    return {"messages": [message_of(message, f"messages[{index}]") for index, message in enumerate(messages)]}


def _text(fields: dict[str, Any]) -> dict[str, Any]:
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, list):
        if any(not isinstance(one, int) for one in prompt):
            raise ClientError("unsupported_parameter", "prompt: one prompt for each request is offered", "prompt")
        return {"token_ids": prompt}
    return {"prompt": prompt}


class CompletionStream(Source):
    """One completion: chunks if it is streamed, else one object at its end."""

    __slots__ = ("_begun", "_created", "_model", "_texts", "_wanted")

    def __init__(
        self, outbox: Outbox, wanted: Wanted, model: str, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        prefix = "chatcmpl-" if wanted.kind == CHAT else "cmpl-"
        super().__init__(outbox, prefix + secrets.token_hex(12), wanted.request, clock)
        self._wanted, self._model, self._created = wanted, wanted.model or model, int(wall_clock())
        self._texts: list[str] = []
        self._begun = False

    def event(self, event: TextEvent) -> None:
        """Take one event of the text edge."""
        if isinstance(event, Accepted):
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
        return self._chunk({"delta": {"content": text}} if self._wanted.kind == CHAT else {"text": text}, None)

    def _add(self, text: str, token_ids: tuple[int, ...]) -> None:
        if text and self._wanted.stream:
            self.add(text, token_ids)
        elif text:
            self._texts.append(text)

    def _begin(self) -> None:
        if not self._begun and self._wanted.stream and self._wanted.kind == CHAT:
            frame = self._chunk({"delta": {"role": "assistant", "content": ""}}, None)
            self.put(lambda _seq: frame)
        self._begun = True

    def _end(self, finish: Finish, rid: str) -> None:
        chat, usage = self._wanted.kind == CHAT, finish.usage
        reason = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}.get(finish.reason, finish.reason.value)
        counts = {
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.input + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        }
        if finish.reason is FinishReason.ERROR:
            error = failure_of(finish, rid)
            if self._wanted.stream:
                frame = encode({"error": error_object(error)})
                self.put(lambda _seq: frame)
            else:
                self.failure = error
            return
        if not self._wanted.stream:
            text = "".join(self._texts)
            body = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
            frame = self._object(body, reason, "", usage=counts)
            self.put(lambda _seq: frame)
            return
        last = self._chunk({"delta": {}} if chat else {"text": ""}, reason)
        self.put(lambda _seq: last)
        if self._wanted.include_usage:
            empty = self._envelope(".chunk" if chat else "", [], usage=counts)
            self.put(lambda _seq: empty)

    def _chunk(self, body: dict[str, Any], reason: str | None) -> bytes:
        return self._object(body, reason, ".chunk" if self._wanted.kind == CHAT else "")

    def _object(self, body: dict[str, Any], reason: str | None, suffix: str, **more: Any) -> bytes:
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": reason}
        return self._envelope(suffix, [choice], **more)

    def _envelope(self, suffix: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = {"id": self.id, "object": self._wanted.kind + suffix, "created": self._created, "model": self._model}
        return encode({**head, "choices": choices, **more})


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "", 0, False)


_OPTIONS = frozenset({
    "cache_salt", "deadline_ms", "frequency_penalty", "ignore_eos", "min_p", "min_tokens", "presence_penalty",
    "priority", "repetition_penalty", "seed", "stop", "stop_token_ids", "temperature", "tenant", "top_k", "top_p",
})  # fmt: skip
_COMMON = frozenset({
    "max_tokens", "max_completion_tokens", "metadata", "model", "prompt_cache_key", "safety_identifier", "store",
    "stream", "stream_options", "user",
})  # fmt: skip
_MUST_BE: dict[str, Callable[[Any], bool]] = {
    "audio": _empty,
    "best_of": lambda value: value in (None, 1),
    "echo": _empty,
    "function_call": _empty,
    "functions": _empty,
    "logit_bias": _empty,
    "logprobs": _empty,
    "modalities": lambda value: value in (None, ["text"]),
    "n": lambda value: value in (None, 1),
    "parallel_tool_calls": lambda value: value is None or isinstance(value, bool),
    "prediction": _empty,
    "reasoning_effort": _empty,
    "response_format": lambda value: value is None or value == {"type": "text"},
    "service_tier": lambda value: value in (None, "auto", "default"),
    "suffix": _empty,
    "tool_choice": lambda value: value in (None, "auto", "none"),
    "tools": _empty,
    "top_logprobs": _empty,
    "verbosity": lambda value: value in (None, "medium"),
    "web_search_options": _empty,
}
