"""Client events of the Realtime API, text only: text -> a checked event, or the refusal it deserves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...core.errors import ClientError, nearest
from ..schema import GenerateRequest, parse
from .reading import MAX_SHOWN, read_object

_SESSION_FIELDS = ("instructions", "max_output_tokens", "model", "output_modalities", "tool_choice", "tools", "type")
_RESPONSE_FIELDS = ("conversation", "input", "instructions", "max_output_tokens", "metadata", "output_modalities")
_EVENTS = (
    "conversation.item.create",
    "conversation.item.delete",
    "conversation.item.retrieve",
    "response.cancel",
    "response.create",
    "session.update",
)


class Event(NamedTuple):
    """A client event of a known type; ``fields`` are checked where they are used."""

    kind: str
    event_id: str | None
    fields: dict[str, Any]


class Refused(NamedTuple):
    """``bad``: it counts as a bad frame."""

    error: ClientError
    event_id: str | None
    bad: bool


def parse_event(text: str | bytes) -> Event | Refused:
    """One client event.  Never raises for what a peer may send."""
    try:
        fields = read_object(text, "the event")
    except ClientError as error:
        return Refused(error, None, True)
    kind, event_id = fields.pop("type", None), fields.pop("event_id", None)
    event_id = event_id if isinstance(event_id, str) else None
    if not isinstance(kind, str):
        return Refused(ClientError("invalid_request", "type is missing", "type"), event_id, True)
    if kind in _EVENTS:
        return Event(kind, event_id, fields)
    shown = kind[:MAX_SHOWN]
    if "audio" in kind or kind == "conversation.item.truncate":
        return Refused(ClientError("unsupported_event", f"{shown}: only text is offered", "type"), event_id, False)
    hint = nearest(shown, _EVENTS)
    return Refused(ClientError("unknown_event", f"unknown type {shown!r}{hint}", "type"), event_id, True)


def session_changes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The checked ``session`` of a ``session.update``.  Raises ClientError."""
    session = fields.get("session")
    if not isinstance(session, dict):
        raise ClientError("invalid_request", "session must be an object", "session")
    return _checked(session, _SESSION_FIELDS, "session")


def response_options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The checked ``response`` of a ``response.create``.  Raises ClientError."""
    response = fields.get("response") or {}
    if not isinstance(response, dict):
        raise ClientError("invalid_request", "response must be an object", "response")
    checked = _checked(response, _RESPONSE_FIELDS, "response")
    if checked.get("conversation", "auto") not in ("auto", "none"):
        raise ClientError("invalid_request", "response.conversation must be auto or none", "response.conversation")
    given = checked.get("input")
    if given is not None and not isinstance(given, list):
        raise ClientError("invalid_request", "response.input must be a list of items", "response.input")
    return checked


def to_request(
    instructions: str, messages: list[dict[str, str]], max_output_tokens: int | str | None, max_context: int
) -> GenerateRequest:
    """What the engine gets.  Raises ClientError."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    most = max_context if max_output_tokens in (None, "inf") else max_output_tokens
    if not system and not messages:
        raise ClientError("invalid_request", "there is nothing to answer: the conversation is empty", "conversation")
    return parse({"messages": [*system, *messages], "max_tokens": most})


def _checked(fields: dict[str, Any], known: tuple[str, ...], where: str) -> dict[str, Any]:
    for name, value in fields.items():
        param = f"{where}.{name[:MAX_SHOWN]}"
        if name not in known:
            hint = nearest(name[:MAX_SHOWN], known)
            raise ClientError("unsupported_parameter", f"{param} is not offered{hint}", param)
        if name == "output_modalities" and value != ["text"]:
            raise ClientError("unsupported_parameter", f'{param}: only ["text"] is offered', param)
        if (name == "tools" and value) or (name == "tool_choice" and value not in (None, "auto", "none")):
            raise ClientError("unsupported_parameter", f"{param}: tools are not offered", param)
        if name == "type" and value != "realtime":
            raise ClientError("unsupported_parameter", f"{param} must be realtime", param)
        if name == "instructions" and not isinstance(value, str | None):
            raise ClientError("invalid_request", f"{param} must be a string", param)
        if name == "max_output_tokens" and value not in (None, "inf") and (type(value) is not int or value < 1):
            raise ClientError("invalid_request", f"{param} must be an integer of at least 1, or inf", param)
        if name == "metadata" and not isinstance(value, dict | None):
            raise ClientError("invalid_request", f"{param} must be an object", param)
    return fields
