"""Client events of the Responses API over WebSocket: text -> a checked event, or the refusal it deserves.

What the engine cannot do is refused by the name of its field, so that no client believes it was done.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ...core.errors import ClientError, nearest
from ..schema import GenerateRequest, parse
from .reading import MAX_SHOWN, OPENAI_OPTIONS, Check, check_fields, is_empty, is_flag, one_of, read_object, typed

MAX_STREAM_ID_CHARS = 256
EVENTS = ("response.cancel", "response.create", "response.steer")

_STREAM_ID = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_STREAM_ID_CHARS}}}")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = frozenset({"input_text", "output_text", "text"})

Message = dict[str, str]


class CreateEvent(NamedTuple):
    """Answer ``messages``, behind those of ``previous`` if it is given.  ``options`` are fields of the one schema."""

    lane: str | None
    messages: tuple[Message, ...]
    instructions: str | None
    previous: str | None
    options: dict[str, Any]
    model: str | None
    generate: bool
    store: bool  # so that it is found on other connections
    echo: dict[str, Any]  # fields that the response repeats
    num_bytes: int

    def request(self, history: tuple[Message, ...], default_max_tokens: int) -> GenerateRequest:
        """What the engine gets; instructions come first and are not inherited.  Raises ClientError."""
        system = ({"role": "system", "content": self.instructions},) if self.instructions else ()
        options = {"max_tokens": default_max_tokens, **self.options}
        if not self.generate:
            options |= {"warm": True}
        return parse({"messages": [*system, *history, *self.messages], **options})


class CancelEvent(NamedTuple):
    """Stop a response by its id, or what runs in a lane."""

    response_id: str | None
    lane: str | None


class SteerEvent(NamedTuple):
    """Change a running response; not offered."""

    lane: str | None
    steer: dict[str, Any]


class RefusedEvent(NamedTuple):
    """``create``: it was a ``response.create``, so its error waits for its lane's turn; it meant to continue
    ``previous``."""

    error: ClientError
    lane: str | None = None
    create: bool = False
    previous: str | None = None


ClientEvent = CreateEvent | CancelEvent | SteerEvent | RefusedEvent


def parse_event(text: str | bytes) -> ClientEvent:
    """One client event, completely checked.  Never raises for what a peer may send."""
    try:
        event = read_object(text, "the event")
    except ClientError as error:
        return RefusedEvent(error)
    kind = event.pop("type", None)
    if not isinstance(kind, str):
        return RefusedEvent(ClientError("invalid_request", f"type is missing; one of {', '.join(EVENTS)}", "type"))
    if kind not in EVENTS:
        hint = nearest(kind[:MAX_SHOWN], EVENTS)
        return RefusedEvent(ClientError("unknown_event", f"unknown type {kind[:MAX_SHOWN]!r}{hint}", "type"))
    lane = event.pop("stream_id", None)
    if lane is not None and (not isinstance(lane, str) or _STREAM_ID.fullmatch(lane) is None):
        message = f"stream_id must be 1 to {MAX_STREAM_ID_CHARS} characters from A-Z a-z 0-9 _ . -"
        return RefusedEvent(ClientError("invalid_stream_id", message, "stream_id"))
    try:
        if kind == "response.steer":
            return SteerEvent(lane, {name: event.get(name) for name in ("input", "previous_response_id")})
        if kind == "response.cancel":
            return CancelEvent(typed(event, "response_id", str, "a string"), lane)
        return _create(event, lane, len(text))
    except ClientError as error:
        previous = event.get("previous_response_id")
        return RefusedEvent(error, lane, kind == "response.create", previous if isinstance(previous, str) else None)


def _create(event: dict[str, Any], lane: str | None, num_bytes: int) -> CreateEvent:
    check_fields(event, _KNOWN, _MUST_BE)
    generate, metadata = event.get("generate", True), event.get("metadata") or {}
    if not isinstance(generate, bool):
        raise ClientError("invalid_request", "generate must be true or false", "generate")
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ClientError("invalid_request", "metadata must be an object of strings", "metadata")
    options = {name: event[name] for name in OPENAI_OPTIONS if event.get(name) is not None}
    if event.get("max_output_tokens") is not None:
        options["max_tokens"] = event["max_output_tokens"]
    instructions, previous, model, user, cache_key, safety_id = (
        typed(event, name, str, "a string")
        for name in (
            "instructions", "previous_response_id", "model", "user", "prompt_cache_key", "safety_identifier",
        )
    )  # fmt: skip
    echo = {
        "metadata": metadata,
        "temperature": options.get("temperature", 1.0),
        "top_p": options.get("top_p", 1.0),
        "max_output_tokens": event.get("max_output_tokens"),
        "instructions": instructions,
        "previous_response_id": previous,
        "user": user,
        "prompt_cache_key": cache_key,
        "safety_identifier": safety_id,
    }
    create = CreateEvent(
        lane,
        _input(event.get("input")),
        instructions,
        previous,
        options,
        model,
        generate,
        event.get("store") is not False,
        echo,
        num_bytes,
    )
    if not create.messages and not create.instructions and create.previous is None:
        raise ClientError("invalid_request", "input is missing", "input")
    try:
        create.request(({"role": "user", "content": ""},), 1 << 20)  # values of wrong type or range are refused at once
    except ClientError as error:
        raise renamed(error) from error
    return create


def renamed(error: ClientError) -> ClientError:
    """An error of the one schema with the names of this API."""
    param = error.param or ""
    if param == "max_tokens":
        return ClientError(error.code, error.message.replace("max_tokens", "max_output_tokens"), "max_output_tokens")
    if error.code != "unsupported_parameter" and (param == "prompt" or param.startswith("messages")):
        return ClientError(error.code, error.message, "input")
    return error


def _input(value: Any) -> tuple[Message, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return ({"role": "user", "content": value},)
    if not isinstance(value, list):
        raise ClientError("invalid_request", "input must be a string or a list of items", "input")
    return tuple(message_of(item, f"input[{index}]") for index, item in enumerate(value))


def message_of(item: Any, where: str) -> Message:
    """Role and text of a message item; ``where`` names it in errors.  Raises ClientError."""
    if not isinstance(item, dict):
        raise ClientError("invalid_request", f"{where} must be an object", where)
    kind = item.get("type", "message")
    if kind != "message":
        raise ClientError(
            "unsupported_parameter", f"{where}: items of type {str(kind)[:MAX_SHOWN]!r} are not offered", where
        )
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ClientError("invalid_request", f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    content = item.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    if not isinstance(content, str):
        raise ClientError("invalid_request", f"{where}.content must be a string or a list of parts", f"{where}.content")
    return {"role": _ROLES[role], "content": content}


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _TEXT_PARTS:
        raise ClientError(
            "unsupported_parameter", f"{where}: only text is offered, not {str(kind)[:MAX_SHOWN]!r}", where
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise ClientError("invalid_request", f"{where}.text must be a string", f"{where}.text")
    return text


def _plain_text(value: Any) -> bool:
    """Whether ``text`` asks for nothing but text."""
    if not isinstance(value, dict):
        return value is None
    shape = value.get("format") or {"type": "text"}
    return isinstance(shape, dict) and shape.get("type") == "text" and value.get("verbosity") in (None, "medium")


#: What else may stand in ``response.create``, and the only values that mean something we do.
_MUST_BE: dict[str, Check] = {
    "background": is_empty,
    "context_management": is_empty,
    "conversation": is_empty,
    "include": is_empty,
    "max_tool_calls": is_empty,
    "moderation": is_empty,
    "parallel_tool_calls": is_flag,
    "prompt": is_empty,
    "reasoning": lambda value: value is None or (isinstance(value, dict) and not any(value.values())),
    "service_tier": one_of("auto", "default"),
    "store": is_flag,
    "stream": one_of(True),  # some clients always send it
    "stream_options": is_empty,
    "text": _plain_text,
    "tool_choice": one_of("auto", "none"),
    "tools": is_empty,
    "top_logprobs": is_empty,
    "truncation": one_of("disabled"),
}
_KNOWN = OPENAI_OPTIONS | {
    "generate", "input", "instructions", "max_output_tokens", "metadata", "model", "previous_response_id",
    "prompt_cache_key", "safety_identifier", "user",
}  # fmt: skip
