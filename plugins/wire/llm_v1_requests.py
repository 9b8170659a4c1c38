"""The client's frames of ``llm.v1``: text -> a checked frame, or the refusal it deserves.

Pure and stateless, so a big frame may be parsed on another thread.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from ...core.errors import ClientError, nearest
from ..schema import GenerateRequest, parse

MAX_ID_CHARS = 64
MAX_SHOWN = 80  # characters of a peer's own words that an error repeats

_ID = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_ID_CHARS}}}")
_TYPES = ("cancel", "generate", "ping")


class GenerateFrame(NamedTuple):
    """Start a generation under the client's own ``id``."""

    id: str
    request: GenerateRequest


class CancelFrame(NamedTuple):
    """Stop the generation ``id``; nothing happens if there is none."""

    id: str


class PingFrame(NamedTuple):
    """Answer with the same fields."""

    fields: dict[str, Any]


class RefusedFrame(NamedTuple):
    """A frame that can't be followed.  ``id`` is that of the generation it asked for, if it did so recognisably."""

    error: ClientError
    id: str | None = None


ClientFrame = GenerateFrame | CancelFrame | PingFrame | RefusedFrame


def parse_frame(text: str | bytes) -> ClientFrame:
    """One client frame, completely checked.  Never raises for what a peer may send."""
    try:
        frame = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return RefusedFrame(ClientError("invalid_json", f"the frame is not valid JSON: {error}"))
    if not isinstance(frame, dict):
        return RefusedFrame(ClientError("invalid_request", f"a frame is a JSON object, not {_kind(frame)}"))
    kind = frame.pop("type", None)
    if not isinstance(kind, str):
        got = "is missing" if kind is None else f"is {_kind(kind)}, not a string"
        return RefusedFrame(ClientError("invalid_request", f"type {got}; one of {', '.join(_TYPES)}", "type"))
    if kind == "ping":
        return PingFrame(frame)
    if kind not in _TYPES:
        message = f"unknown type {kind[:MAX_SHOWN]!r}{nearest(kind[:MAX_SHOWN], _TYPES)}"
        return RefusedFrame(ClientError("unknown_event", message, "type"))
    stream_id = frame.pop("id", None)
    if not isinstance(stream_id, str) or _ID.fullmatch(stream_id) is None:
        message = f"id must be 1 to {MAX_ID_CHARS} characters from A-Z a-z 0-9 _ . - (got {_shown(stream_id)})"
        return RefusedFrame(ClientError("invalid_request", message, "id"))
    if kind == "cancel":
        for name in frame:
            shown = name[:MAX_SHOWN]
            message = f"unknown field {shown!r} in cancel{nearest(shown, ('id', 'type'))}"
            return RefusedFrame(ClientError("unsupported_parameter", message, shown))
        return CancelFrame(stream_id)
    try:
        return GenerateFrame(stream_id, parse(frame))
    except ClientError as error:
        return RefusedFrame(error, stream_id)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return f"{value[:MAX_SHOWN]!r}, {len(value)} characters" if isinstance(value, str) else _kind(value)
