"""A session of the Responses API, and events for it."""

from __future__ import annotations

import json
from typing import Any

from mainspring.plugins.wire.actions import Action, Generate
from mainspring.plugins.wire.responses import ResponsesSession, ResponseStream

from .driver import drain


def make(**options: Any) -> ResponsesSession:
    return ResponsesSession(
        model="tiny", max_context=2048, wall_clock=lambda: 1234.9, clock=lambda: 7.0, aliases=("fake",), **options
    )


def create(session: ResponsesSession, **fields: Any) -> list[Action]:
    return session.receive(json.dumps({"type": "response.create", "input": "hi", "model": "fake", **fields}))


def begin(session: ResponsesSession, **fields: Any) -> ResponseStream:
    (action,) = create(session, **fields)
    assert isinstance(action, Generate)
    assert isinstance(action.stream, ResponseStream)
    return action.stream


def refusal(session: ResponsesSession, **fields: Any) -> dict[str, Any]:
    assert create(session, **fields) == []
    (event,) = drain(session)
    assert event["type"] == "error"
    assert event["status"] == 400 or event["error"]["type"] != "invalid_request_error" or event["status"] == 404
    error: dict[str, Any] = event["error"]
    assert set(error) == {"type", "code", "message", "param"}
    return error
