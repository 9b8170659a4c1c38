"""The server's frames of ``llm.v1``: what they look like on the wire, written by servers and read by clients.

Every frame is one JSON object in one text message, with a string ``type``; text is sent as UTF-8, not as escapes.
A client skips fields and types it does not know, so new ones may be added at any time.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ...core.messages import Timing, Usage

PROTOCOL = "llm.v1"


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the frames: ``type`` comes first, then the fields in the order below."""


class HelloFrame(_Frame, frozen=True, kw_only=True, tag="hello"):
    """First frame of a connection.  ``limits`` are numbers by name, their unit at the end of the name."""

    protocol: str = PROTOCOL
    server: str
    models: tuple[str, ...]
    limits: dict[str, int]
    features: tuple[str, ...]


class StartFrame(_Frame, frozen=True, kw_only=True, tag="start"):
    """The engine took the request.  ``created``: Unix time in seconds; ``rid``: the server's own id, for ``story``;
    ``resume``: the token that takes the stream up again on another connection, if ``retain_s`` was asked for."""

    id: str
    seq: int
    model: str
    created: int
    rid: str
    resume: str | UnsetType = UNSET


class ProgressFrame(_Frame, frozen=True, kw_only=True, tag="progress"):
    """Before the first token, if asked for: ``state`` is queued or prefill, ``done`` of ``total`` prompt tokens."""

    id: str
    state: str
    done: int | UnsetType = UNSET
    total: int | UnsetType = UNSET


class DeltaFrame(_Frame, frozen=True, kw_only=True, tag="delta"):
    """New text, whole characters only; ``n`` tokens went into it, ``tokens`` are their ids if they were asked for."""

    id: str
    seq: int
    text: str
    n: int
    tokens: tuple[int, ...] | UnsetType = UNSET


class DoneFrame(_Frame, frozen=True, kw_only=True, tag="done"):
    """Terminal.  ``reason`` is stop, length, cancelled or deadline; ``timing`` holds milliseconds."""

    id: str
    seq: int
    reason: str
    stop: str | int | UnsetType = UNSET
    usage: Usage
    timing: dict[str, float]


class ErrorFrame(_Frame, frozen=True, kw_only=True, tag="error"):
    """Terminal of ``id`` if it has one; without ``id`` it answers a frame that started nothing."""

    id: str | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    code: str
    status: int
    message: str
    param: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    retry_after_ms: int | UnsetType = UNSET


class GoawayFrame(_Frame, frozen=True, kw_only=True, tag="goaway"):
    """The connection will be closed: finish what runs and connect again.  ``reason`` is drain or max_age."""

    reason: str
    grace_ms: int


class PongFrame(_Frame, frozen=True, kw_only=True, tag="pong"):
    """Answer to a ping; the ping's own fields come back beside ``type``."""


ServerFrame = HelloFrame | StartFrame | ProgressFrame | DeltaFrame | DoneFrame | ErrorFrame | GoawayFrame | PongFrame

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ServerFrame)


def encode(frame: ServerFrame) -> bytes:
    """The frame as UTF-8 JSON."""
    return _encoder.encode(frame)


def encode_pong(fields: dict[str, Any]) -> bytes:
    """A pong with the ping's own fields."""
    return _encoder.encode({**fields, "type": "pong"})


def decode(text: str | bytes) -> ServerFrame | None:
    """A server's frame as a client sees it; None for a type, or a shape, this client does not know."""
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        return None


def timing_ms(timing: Timing) -> dict[str, float]:
    """Clock values to durations in milliseconds: queued, prefill, ttft, decode, total; absent if it never happened."""
    spans = {
        "queued": (timing.arrival, timing.scheduled),
        "prefill": (timing.scheduled, timing.first_token),
        "ttft": (timing.arrival, timing.first_token),
        "decode": (timing.first_token, timing.finished),
        "total": (timing.arrival, timing.finished),
    }
    return {
        name: round((end - start) * 1e3, 3)
        for name, (start, end) in spans.items()
        if start is not None and end is not None
    }
