"""How an answer over HTTP is written: one JSON document, or a stream of events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

import msgspec

from ...core.errors import ClientError
from ..wire.errors import error_object
from .pages import RETRY_AFTER_S

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"


def refusal(error: ClientError) -> dict[str, Any]:
    """The document of a refusal, as the OpenAI APIs write it."""
    return {"error": error_object(error)}


class Style(NamedTuple):
    """How an answer is written: as a stream of events or as one object."""

    stream: bool
    wrap: Callable[[bytes], bytes]
    tail: bytes = b""
    refuse: Callable[[ClientError], Any] = refusal


def as_data(frame: bytes) -> bytes:
    """A frame as an event without a name."""
    return b"data: " + frame + b"\n\n"


def as_event(frame: bytes) -> bytes:
    """A frame as an event named by its ``type``, which stands first in it."""
    kind = frame.partition(b'"type":"')[2].partition(b'"')[0]
    return b"event: " + kind + b"\ndata: " + frame + b"\n\n"


def start(status: int, kind: bytes, *more: tuple[bytes, bytes]) -> dict[str, Any]:
    """The ASGI message that begins an answer of this content type."""
    headers = [(b"content-type", kind), (b"cache-control", b"no-store"), *more]
    return {"type": "http.response.start", "status": status, "headers": headers}


async def answer(send: Send, status: int, value: Any) -> None:
    """One JSON document."""
    body = msgspec.json.encode(value)
    more = [(b"content-length", str(len(body)).encode())]
    if status in (429, 503):
        more.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    await send(start(status, JSON, *more))
    await send({"type": "http.response.body", "body": body})
