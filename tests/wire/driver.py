"""What the tests of every protocol do: take what waits, check it against the published schema, end a generation."""

from __future__ import annotations

import json
from typing import Any

from mainspring.core.messages import Finish, FinishReason, Timing, Usage
from mainspring.plugins.text.events import Accepted, Delta, Ended
from mainspring.plugins.wire.outbox import Outbox, Source

from .schemas import check_server_frame

TIMING = Timing(arrival=10.0, scheduled=10.25, first_token=10.75, finished=12.0)


def drain(session: Outbox) -> list[dict[str, Any]]:
    """Everything that waits, each frame checked."""
    frames = []
    while (frame := session.pop()) is not None:
        frames.append(json.loads(frame))
        check_server_frame(frames[-1])
    return frames


def finish(reason: FinishReason = FinishReason.STOP, **more: Any) -> Finish:
    """The end of a generation with 5 prompt tokens, 2 of them cached, and 4 more."""
    return Finish(reason=reason, usage=Usage(input=5, cached=2, output=4), timing=TIMING, **more)


def answer(stream: Source, text: str = "Hello wörld 👋", reason: FinishReason = FinishReason.STOP) -> None:
    """A whole generation, a character at a time."""
    stream.event(Accepted("r", 5))
    for char in text:
        stream.event(Delta("r", char, (1,)))
    stream.event(Ended("r", "", (), finish(reason)))
