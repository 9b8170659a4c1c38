"""Server events of the Responses API: what each looks like on the wire.

One event is one JSON object in one text message.  ``stream_id`` comes last, if the request had one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.errors import ClientError
from ...core.messages import Usage
from .answers import io_counts
from .errors import error_object

encode = msgspec.json.encode
#: Fields of a response that are always the same here.
_FIXED: dict[str, Any] = {
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": None, "summary": None},
    "truncation": "disabled",
    "background": False,
    "service_tier": "default",
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "max_tool_calls": None,
}


def event(kind: str, lane: str | None, **fields: Any) -> bytes:
    """An event of this type."""
    return encode({"type": kind, **fields, **({} if lane is None else {"stream_id": lane})})


def response_object(
    response_id: str, created_at: int, model: str, status: str, echo: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """A response as it is now; ``more`` holds what changes at its end (output, usage, error, ...)."""
    head = {"id": response_id, "object": "response", "created_at": created_at, "status": status, "completed_at": None}
    middle: dict[str, Any] = {"error": None, "incomplete_details": None, "model": model, "output": [], "usage": None}
    return {**head, **middle, **_FIXED, **echo, **more}


def message_item(item_id: str, status: str, text: str | None) -> dict[str, Any]:
    """The one output item; ``text`` None before there is any."""
    content = [] if text is None else [text_part(text)]
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        **io_counts(usage),
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }


def error_event(error: ClientError, lane: str | None = None) -> bytes:
    """What answers an event that starts nothing, or a request that the engine refuses."""
    return event("error", lane, status=error.kind.status, error=error_object(error))


def steer_failed(steer: dict[str, Any], lane: str | None) -> bytes:
    """Steering is not offered."""
    error = error_object(ClientError("steering_not_supported", "a running response can't be steered here"))
    del error["param"]
    return event("response.steer.failed", lane, sequence_number=0, error=error, steer=steer)
