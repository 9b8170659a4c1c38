"""What the Responses API refuses, and what it lets pass."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.messages import Failure, FinishReason
from mainspring.plugins.text.events import Ended
from mainspring.plugins.wire.actions import Close

from .driver import drain, finish
from .responses_driver import begin, make, refusal

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "content", "text"]), inner)
    ),
    max_leaves=8,
)


FIELDS = st.dictionaries(
    st.sampled_from(
        ["input", "model", "tools", "text", "reasoning", "stream_id", "metadata", "include", "stop", "stream"]
    ),
    JSON,
)


def test_e9_a_refusal_by_the_engine_is_an_error_event_with_the_names_of_this_api() -> None:
    """E9: before any other event of the request."""
    session = make()
    failure = Failure("context_length_exceeded", "the prompt is too long", "messages")
    begin(session, stream_id="a").event(Ended("r", "", (), finish(FinishReason.ERROR, failure=failure)))
    (event,) = drain(session)
    assert (event["type"], event["status"], event["stream_id"]) == ("error", 400, "a")
    assert (event["error"]["code"], event["error"]["param"]) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text"),
        ({"text": {"format": {"type": "json_object"}}}, "text"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"background": True}, "background"),
        ({"stream": False}, "stream"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"nonsense": 1}, "nonsense"),
        ({"input": [{"type": "function_call_output"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
)
def test_what_is_not_offered_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    """F13, F-01."""
    error = refusal(make(), **fields)
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "7"}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"instructions": 7}, "instructions"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"generate": "no"}, "generate"),
        ({"previous_response_id": 7}, "previous_response_id"),
        ({"model": 7}, "model"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(make(), **fields)
    assert (error["code"], error["param"]) == ("invalid_request", param)


def test_f13_what_clients_send_without_meaning_anything_is_accepted() -> None:
    """F13: some clients always send these."""
    harmless = {
        "stream": True, "include": [], "tools": [], "tool_choice": "auto", "store": False, "background": False,
        "reasoning": {"effort": None}, "text": {"format": {"type": "text"}}, "truncation": "disabled",
        "parallel_tool_calls": True, "prompt_cache_key": "k", "user": "u", "service_tier": "auto", "temperature": None,
        "max_output_tokens": None, "top_logprobs": 0, "metadata": None,
    }  # fmt: skip
    begin(make(), **harmless)
    session = make()
    assert session.receive('{"type":"response.create","input":"no model"}') != []


def test_steering_is_refused_as_clients_expect() -> None:
    session = make()
    assert session.receive('{"type":"response.steer","input":"left","previous_response_id":"resp_1"}') == []
    (event,) = drain(session)
    assert (event["type"], event["error"]["code"]) == ("response.steer.failed", "steering_not_supported")
    assert event["steer"] == {"input": "left", "previous_response_id": "resp_1"}


@pytest.mark.parametrize(
    ("text", "code"),
    [("?", "invalid_json"), ("[]", "invalid_request"), ("{}", "invalid_request"), ('{"type":"x"}', "unknown_event")],
)
def test_f4_bad_events_are_answered_and_ten_in_a_row_close_1008(text: str, code: str) -> None:
    """F4, E-10."""
    session = make()
    for _ in range(9):
        assert session.receive(text) == []
    (action,) = session.receive(text)
    assert isinstance(action, Close)
    assert action.code == 1008
    assert [event["error"]["code"] for event in drain(session)] == [code] * 10


@given(FIELDS)
def test_no_event_whatever_raises_and_each_is_answered(fields: dict[str, Any]) -> None:
    """F4."""
    session = make()
    actions = session.receive(json.dumps({"type": "response.create", **fields}))
    assert bool(actions) != bool(drain(session))
