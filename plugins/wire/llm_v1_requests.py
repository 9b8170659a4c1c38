"""The client's frames of ``llm.v1``: text -> a checked frame, or the refusal it deserves.

Pure and stateless, so a big frame may be parsed on another thread.
"""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from ...core.errors import ClientError, nearest
from ..schema import GenerateRequest, parse
from .reading import MAX_SHOWN, kind_of, read_object, unknown_field

MAX_ID_CHARS = 64
MAX_NUMBER = 1e12  # of seconds, milliseconds, sequence numbers: beyond it nothing is meant

_ID = re.compile(rf"[A-Za-z0-9_.\-]{{1,{MAX_ID_CHARS}}}")
_TYPES = ("cancel", "generate", "ping", "resume")
MAX_COALESCE_MS = 10_000
MAX_TOKEN_CHARS = 64  # of a resume token


class GenerateFrame(NamedTuple):
    """Start a generation under the client's own ``id``.

    ``retain_s``: how long it can be resumed after the connection is lost; ``progress``: news before the first token;
    ``coalesce_ms``: least time between two deltas.
    """

    id: str
    request: GenerateRequest
    model: str | None = None
    retain_s: float = 0.0
    progress: bool = False
    coalesce_ms: float = 0.0


class ResumeFrame(NamedTuple):
    """Take up the stream of ``token`` behind frame ``after`` (-1: from its first frame)."""

    id: str
    token: str
    after: int


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


ClientFrame = GenerateFrame | ResumeFrame | CancelFrame | PingFrame | RefusedFrame


def parse_frame(text: str | bytes) -> ClientFrame:
    """One client frame, completely checked.  Never raises for what a peer may send."""
    try:
        frame = read_object(text, "the frame")
    except ClientError as error:
        return RefusedFrame(error)
    kind = frame.pop("type", None)
    if not isinstance(kind, str):
        got = "is missing" if kind is None else f"is {kind_of(kind)}, not a string"
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
    try:
        if kind == "cancel":
            _only(frame, kind, ())
            return CancelFrame(stream_id)
        if kind == "resume":
            return _resume(stream_id, frame)
        return _generate(stream_id, frame)
    except ClientError as error:
        return RefusedFrame(error, None if kind == "cancel" else stream_id)


def _generate(stream_id: str, frame: dict[str, Any]) -> GenerateFrame:
    model, progress = frame.pop("model", None), frame.pop("progress", False)
    if model is not None and not isinstance(model, str):
        raise ClientError("invalid_request", f"model must be a string (got {kind_of(model)})", "model")
    if not isinstance(progress, bool):
        raise ClientError("invalid_request", f"progress must be true or false (got {kind_of(progress)})", "progress")
    retain_s = _number(frame, "retain_s", math.inf)
    coalesce_ms = _number(frame, "coalesce_ms", MAX_COALESCE_MS)
    return GenerateFrame(stream_id, parse(frame), model, retain_s, progress, coalesce_ms)


def _resume(stream_id: str, frame: dict[str, Any]) -> ResumeFrame:
    token, after = frame.pop("token", None), frame.pop("after", None)
    _only(frame, "resume", ("after", "token"))
    if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN_CHARS:
        raise ClientError("invalid_request", f"token must be the one of the start frame (got {_shown(token)})", "token")
    if type(after) is not int or after < -1:
        message = "after must be the seq of the last frame seen, or -1"
        raise ClientError(
            "invalid_request", f"{message} (got {after if type(after) is int else _shown(after)})", "after"
        )
    return ResumeFrame(stream_id, token, after)


def _number(frame: dict[str, Any], name: str, most: float) -> float:
    value = frame.pop(name, 0)
    if type(value) not in (int, float) or not 0 <= value <= min(most, MAX_NUMBER):
        limit = "" if math.isinf(most) else f" to {most:g}"
        raise ClientError("invalid_request", f"{name} must be a number from 0{limit} (got {_shown(value)})", name)
    return float(value)


def _only(frame: dict[str, Any], kind: str, fields: tuple[str, ...]) -> None:
    for name in frame:
        raise unknown_field(name, ("id", "type", *fields), f"in {kind}")


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    return f"{value[:MAX_SHOWN]!r}, {len(value)} characters" if isinstance(value, str) else kind_of(value)
