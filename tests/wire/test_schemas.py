"""The published schemas: up to date, and able to tell right from wrong.  Traffic is checked where tests receive it."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.plugins.wire import schema_docs

from .schemas import DOCS, NATIVE, RESPONSES


@pytest.mark.parametrize("name", sorted(schema_docs.FILES))
def test_the_files_are_what_the_code_says(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    again = "run python -m mainspring.plugins.wire.schema_docs docs"
    assert text == schema_docs.render(schema_docs.FILES[name]()), again


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "nope"},
        {"type": "delta", "id": "a", "seq": 0, "n": 1},
        {"type": "delta", "id": "a", "seq": "0", "text": "", "n": 1},
        {"type": "delta", "id": "a", "seq": 0, "text": "", "n": 1, "more": 1},
        {"type": "delta", "id": "a", "seq": True, "text": "", "n": 1},
        {"type": "response.created"},
    ],
)
def test_wrong_frames_are_told_from_right_ones(frame: dict[str, Any]) -> None:
    for schema in (NATIVE, RESPONSES):
        with pytest.raises(AssertionError):
            schema.check(frame)
    NATIVE.check({"type": "delta", "id": "a", "seq": 0, "text": "", "n": 1, "tokens": [1]})
    NATIVE.check({"type": "pong", "anything": {"else": 1}})


@pytest.mark.parametrize(
    ("frame", "right"),
    [
        ({"type": "generate", "id": "a", "prompt": "x", "stop": "y", "retain_s": 3, "model": None}, True),
        ({"type": "generate", "id": "a b", "prompt": "x"}, False),
        ({"type": "generate", "id": "a", "prompt": "x", "temprature": 1}, False),
        ({"type": "resume", "id": "a", "token": "t", "after": -1}, True),
        ({"type": "resume", "id": "a", "token": "t", "after": -2}, False),
        ({"type": "cancel", "id": "a"}, True),
        ({"type": "cancel", "id": "a", "why": 1}, False),
        ({"type": "ping", "t": 1}, True),
    ],
)
def test_client_frames_too(frame: dict[str, Any], right: bool) -> None:
    if right:
        NATIVE.check(frame, "client")
    else:
        with pytest.raises(AssertionError):
            NATIVE.check(frame, "client")
