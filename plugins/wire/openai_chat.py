"""``/v1/chat/completions`` and ``/v1/completions`` without I/O: a body in, chunks or one object out.

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
from .errors import error_object
from .outbox import Outbox
from .reading import OPENAI_OPTIONS, Check, check_fields, is_empty, is_flag, one_of, read_object, typed
from .responses_events import encode
from .responses_requests import message_of

CHAT, TEXT = "chat.completion", "text_completion"


class Wanted(NamedTuple):
    """What a body asks for.  ``kind``: CHAT or TEXT."""

    kind: str
    request: GenerateRequest
    model: str | None
    stream: bool
    include_usage: bool


def parse_body(kind: str, body: bytes, max_context: int) -> Wanted:
    """One checked body.  Raises ClientError."""
    fields = read_object(body, "the body")
    check_fields(fields, _KNOWN | {"messages" if kind == CHAT else "prompt"}, _MUST_BE)
    options = {name: fields[name] for name in OPENAI_OPTIONS if fields.get(name) is not None}
    limit = "max_completion_tokens" if fields.get("max_completion_tokens") is not None else "max_tokens"
    default = max_context if kind == CHAT else 16  # what the API does without a limit
    options["max_tokens"] = default if fields.get(limit) is None else fields[limit]
    stream = typed(fields, "stream", bool, "true or false") or False
    model = typed(fields, "model", str, "a string")
    usage = typed(fields, "stream_options", dict, "an object") or {}
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


class CompletionStream(Answer):
    """One completion: chunks if it is streamed, else one object at its end."""

    __slots__ = ("_created", "_model", "_wanted")

    def __init__(
        self, outbox: Outbox, wanted: Wanted, model: str, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        name = ("chatcmpl-" if wanted.kind == CHAT else "cmpl-") + secrets.token_hex(12)
        super().__init__(outbox, name, wanted.request, clock, streams=wanted.stream, keeps=not wanted.stream)
        self._wanted, self._model, self._created = wanted, wanted.model or model, int(wall_clock())

    def encode_delta(self, seq: int, text: str, count: int, token_ids: tuple[int, ...]) -> bytes:
        return self._chunk({"delta": {"content": text}} if self._wanted.kind == CHAT else {"text": text}, None)

    def begin(self) -> None:
        if self.streams and self._wanted.kind == CHAT:
            self.send(self._chunk({"delta": {"role": "assistant", "content": ""}}, None))

    def end(self, finish: Finish, failure: ClientError | None) -> None:
        if failure is not None:
            if self.streams:
                self.send(encode({"error": error_object(failure)}))
            else:
                self.failure = failure
            return
        chat, usage = self._wanted.kind == CHAT, finish.usage
        reason = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}.get(finish.reason, finish.reason.value)
        counts = {
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.input + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        }
        if not self.streams:
            text = self.text
            body = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
            self.send(self._object(body, reason, "", usage=counts))
            return
        self.send(self._chunk({"delta": {}} if chat else {"text": ""}, reason))
        if self._wanted.include_usage:
            self.send(self._envelope(".chunk" if chat else "", [], usage=counts))

    def _chunk(self, body: dict[str, Any], reason: str | None) -> bytes:
        return self._object(body, reason, ".chunk" if self._wanted.kind == CHAT else "")

    def _object(self, body: dict[str, Any], reason: str | None, suffix: str, **more: Any) -> bytes:
        choice = {"index": 0, **body, "logprobs": None, "finish_reason": reason}
        return self._envelope(suffix, [choice], **more)

    def _envelope(self, suffix: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = {"id": self.id, "object": self._wanted.kind + suffix, "created": self._created, "model": self._model}
        return encode({**head, "choices": choices, **more})


_KNOWN = OPENAI_OPTIONS | {
    "max_tokens", "max_completion_tokens", "metadata", "model", "prompt_cache_key", "safety_identifier", "store",
    "stream", "stream_options", "user",
}  # fmt: skip
_MUST_BE: dict[str, Check] = {
    "audio": is_empty,
    "best_of": one_of(1),
    "echo": is_empty,
    "function_call": is_empty,
    "functions": is_empty,
    "logit_bias": is_empty,
    "logprobs": is_empty,
    "modalities": one_of(["text"]),
    "n": one_of(1),
    "parallel_tool_calls": is_flag,
    "prediction": is_empty,
    "reasoning_effort": is_empty,
    "response_format": one_of({"type": "text"}),
    "service_tier": one_of("auto", "default"),
    "suffix": is_empty,
    "tool_choice": one_of("auto", "none"),
    "tools": is_empty,
    "top_logprobs": is_empty,
    "verbosity": one_of("medium"),
    "web_search_options": is_empty,
}
