"""A session of the native protocol, and frames for it."""

from __future__ import annotations

import json
from typing import Any

from mainspring.plugins.wire.actions import Generate
from mainspring.plugins.wire.llm_v1 import Session, Stream
from mainspring.plugins.wire.llm_v1_frames import HelloFrame, decode

from .driver import drain


def make_session() -> Session:
    session = Session(server="mainspring/1", model="tiny", limits={}, wall_clock=lambda: 1234.9, clock=lambda: 0.0)
    assert isinstance(decode(session.hello()), HelloFrame)
    return session


def begin(session: Session, stream_id: str = "a", **fields: Any) -> Stream:
    frame = {"type": "generate", "id": stream_id, "prompt": "Hi"} | fields
    (action,) = session.receive(json.dumps(frame))
    assert isinstance(action, Generate)
    assert isinstance(action.stream, Stream)
    return action.stream


def refusal(session: Session, text: str) -> dict[str, Any]:
    assert session.receive(text) == []
    (frame,) = drain(session)
    assert frame["type"] == "error"
    return frame
