"""The Responses API without a socket: events in, events out, against what real clients need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.messages import Failure, Finish, FinishReason, Timing, Usage
from mainspring.plugins.text.events import Accepted, Delta, Ended
from mainspring.plugins.wire.actions import Action, Cancel, Close, Generate
from mainspring.plugins.wire.responses import MAX_LANES, ResponsesSession, ResponseStream
from mainspring.plugins.wire.responses_history import MAX_OTHERS, History

from .schemas import check_server_frame

TIMING = Timing(arrival=10.0, scheduled=10.25, first_token=10.75, finished=12.0)


def make(**options: Any) -> ResponsesSession:
    return ResponsesSession(
        model="tiny", max_context=2048, wall_clock=lambda: 1234.9, clock=lambda: 7.0, aliases=("fake",), **options
    )


def drain(session: ResponsesSession) -> list[dict[str, Any]]:
    events = []
    while (event := session.pop()) is not None:
        events.append(json.loads(event))
        check_server_frame(events[-1])
    return events


def create(session: ResponsesSession, **fields: Any) -> list[Action]:
    return session.receive(json.dumps({"type": "response.create", "input": "hi", "model": "fake", **fields}))


def begin(session: ResponsesSession, **fields: Any) -> ResponseStream:
    (action,) = create(session, **fields)
    assert isinstance(action, Generate)
    assert isinstance(action.stream, ResponseStream)
    return action.stream


def finish(reason: FinishReason = FinishReason.STOP, **more: Any) -> Finish:
    return Finish(reason=reason, usage=Usage(input=5, cached=2, output=4), timing=TIMING, **more)


def answer(stream: ResponseStream, text: str = "Hello wörld 👋", reason: FinishReason = FinishReason.STOP) -> None:
    stream.event(Accepted("r", 5))
    for char in text:
        stream.event(Delta("r", char, (1,)))
    stream.event(Ended("r", "", (), finish(reason)))


def refusal(session: ResponsesSession, **fields: Any) -> dict[str, Any]:
    assert create(session, **fields) == []
    (event,) = drain(session)
    assert event["type"] == "error"
    assert event["status"] == 400 or event["error"]["type"] != "invalid_request_error" or event["status"] == 404
    error: dict[str, Any] = event["error"]
    assert set(error) == {"type", "code", "message", "param"}
    return error


ORDER = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def test_a_whole_response_has_every_event_in_order() -> None:
    """D1, E2, F6: also byte by byte for the event that there are most of."""
    session = make()
    stream = begin(session, max_output_tokens=16, metadata={"k": "v"}, instructions="be brief")
    stream.event(Accepted("r", 5))
    first = [json.loads(session.pop() or b"") for _ in range(4)]
    stream.event(Delta("r", 'Hé"', (1,)))
    delta = session.pop() or b""
    item = json.loads(delta)["item_id"]
    assert delta.decode() == (
        f'{{"type":"response.output_text.delta","sequence_number":4,"item_id":"{item}","output_index":0,'
        '"content_index":0,"delta":"Hé\\"","logprobs":[]}'
    )
    stream.event(Delta("r", "👋", (2,)))
    stream.event(Ended("r", "", (), finish()))
    events = [*first, json.loads(delta), *drain(session)]
    assert [event["type"] for event in events] == ORDER
    assert [event["sequence_number"] for event in events] == list(range(len(ORDER)))
    assert all("stream_id" not in event for event in events)
    response = events[-1]["response"]
    assert response["output"] == [events[-2]["item"]]
    assert response["output"][0]["content"] == [
        {"type": "output_text", "text": 'Hé"👋', "annotations": [], "logprobs": []}
    ]
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }
    assert response["timing"] == {
        "queued": 250.0, "prefill": 500.0, "ttft": 750.0, "decode": 1250.0, "total": 2000.0, "blocked": 0.0,
    }  # fmt: skip
    assert (response["id"], response["status"], response["model"]) == (stream.id, "completed", "fake")
    assert (response["metadata"], response["instructions"], response["max_output_tokens"]) == (
        {"k": "v"},
        "be brief",
        16,
    )
    assert {event["response"]["id"] for event in events if "response" in event} == {stream.id}
    assert events[0]["response"]["status"] == "in_progress"


def test_the_response_has_every_field_that_typed_clients_require() -> None:
    session = make()
    answer(begin(session))
    response = drain(session)[-1]["response"]
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs"):
        assert isinstance(response[name], int | float), name
    required = (
        "id object created_at completed_at status incomplete_details model previous_response_id instructions output "
        "error tools tool_choice truncation parallel_tool_calls text reasoning usage max_output_tokens max_tool_calls "
        "store background service_tier metadata safety_identifier prompt_cache_key user"
    )
    assert set(required.split()) <= set(response)


def test_the_request_that_the_engine_gets() -> None:
    session = make()
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}], "id": "msg_1"},
    ]
    request = begin(session, input=items, instructions="Sys.", temperature=0.5, max_output_tokens=7, stop=["x"]).request
    assert request.messages == (
        {"role": "system", "content": "Sys."},
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    )
    assert (request.temperature, request.max_tokens, request.stop) == (0.5, 7, ("x",))
    assert begin(make()).request.max_tokens == 2048


def test_e7_continuation_sends_only_what_is_new_and_does_not_inherit_instructions() -> None:
    session = make()
    first = begin(session, instructions="be brief")
    answer(first, "one")
    second = begin(session, input="more", previous_response_id=first.id)
    assert second.request.messages == (
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "more"},
    )
    answer(second, "two")
    assert drain(session)[-1]["response"]["previous_response_id"] == first.id
    fork = begin(session, input="other", previous_response_id=first.id, stream_id="b")
    assert [message["content"] for message in fork.request.messages or ()] == ["hi", "one", "other"]


def test_e7_an_unknown_parent_has_its_exact_code_and_the_connection_goes_on() -> None:
    """E7: also for ids of another connection."""
    session = make()
    other = begin(make())
    for unknown in ("resp_nope", other.id):
        error = refusal(session, previous_response_id=unknown)
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
        assert error["type"] == "invalid_request_error"
    answer(begin(session))
    assert drain(session)[-1]["type"] == "response.completed"


def test_a_failed_continuation_evicts_its_parent() -> None:
    session = make()
    first = begin(session)
    answer(first)
    drain(session)
    assert refusal(session, previous_response_id=first.id, model="other")["code"] == "model_not_found"
    assert refusal(session, previous_response_id=first.id)["code"] == "previous_response_not_found"


def test_warm_up_gives_an_id_and_no_output() -> None:
    """``generate: false`` computes the prompt, so that the next request finds it in the cache."""
    session = make()
    stream = begin(session, generate=False)
    assert stream.request.warm
    answer(stream, "x", FinishReason.LENGTH)
    events = drain(session)
    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1]["response"]["output"] == []
    follow = begin(session, input="go", previous_response_id=stream.id)
    assert [message["content"] for message in follow.request.messages or ()] == ["hi", "go"]


def test_f14_a_lane_is_strictly_first_in_first_out_and_lanes_run_side_by_side() -> None:
    """F14."""
    session = make()
    one = begin(session, stream_id="a", input="1")
    assert create(session, stream_id="a", input="2") == []
    assert create(session, stream_id="a", max_output_tokens=-1) == []  # its error waits for its turn
    assert create(session, stream_id="a", input="3") == []
    other = begin(session, stream_id="b")
    assert session.num_sources == 5
    answer(other, "b")
    answer(one, "a")
    (action,) = session.due()
    assert isinstance(action, Generate)
    assert action.received == 7.0
    events = drain(session)
    mine = [event for event in events if event["stream_id"] == "a"]
    assert [event["type"] for event in mine][-1] == "response.completed"
    assert isinstance(action.stream, ResponseStream)
    answer(action.stream, "2")
    (last,) = session.due()
    events = drain(session)
    assert [event["type"] for event in events][-2:] == ["response.completed", "error"]
    assert events[-1]["error"]["param"] == "max_output_tokens"
    assert {event["stream_id"] for event in events} == {"a"}
    assert isinstance(last, Generate)
    assert isinstance(last.stream, ResponseStream)
    answer(last.stream)
    assert session.num_sources == 0


def test_f14_limits_of_lanes() -> None:
    """F14."""
    session = make()
    for number in range(MAX_LANES):
        begin(session, stream_id=f"lane-{number}")
    assert refusal(session, stream_id="one-more")["code"] == "websocket_stream_limit_reached"
    begin(session)  # the default lane does not count
    for wrong in ("", "a b", "x" * 257, 7):
        assert refusal(session, stream_id=wrong)["code"] == "invalid_stream_id"


def test_requests_that_wait_are_limited() -> None:
    session = make(max_waiting=1)
    begin(session)
    assert create(session) == []
    assert create(session) == []
    (event,) = drain(session)
    assert (event["status"], event["error"]["code"], event["error"]["type"]) == (429, "queue_full", "rate_limit_error")
    begin(session, stream_id="other")


def test_cancel_is_an_extension_with_a_terminal_that_every_client_knows() -> None:
    """A4, E3: partial output and usage."""
    session = make()
    cancel = '{"type":"response.cancel"%s}'
    stream, lane = begin(session), begin(session, stream_id="a")
    assert session.receive(cancel % "") == [Cancel(stream)]
    assert session.receive(cancel % f',"response_id":"{lane.id}"') == [Cancel(lane)]
    assert session.receive(cancel % ',"stream_id":"a"') == [Cancel(lane)]
    stream.event(Accepted("r", 5))
    stream.event(Delta("r", "partial", (1,)))
    stream.event(Ended("r", "", (), finish(FinishReason.CANCELLED)))
    last = drain(session)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert last["response"]["output"][0]["content"][0]["text"] == "partial"
    assert last["response"]["usage"]["output_tokens"] == 4
    assert session.receive(cancel % "") == []
    (event,) = drain(session)
    assert (event["status"], event["error"]["code"]) == (404, "not_found")


def test_a_cancel_before_the_start_has_a_terminal_too() -> None:
    """A5."""
    session = make()
    begin(session).event(Ended("r", "", (), Finish(FinishReason.CANCELLED, Usage(0, 0, 0), Timing(1.0, finished=2.0))))
    events = drain(session)
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.incomplete")


@pytest.mark.parametrize(
    ("reason", "kind", "why"),
    [(FinishReason.LENGTH, "incomplete", "max_output_tokens"), (FinishReason.DEADLINE, "incomplete", "deadline")],
)
def test_other_ends(reason: FinishReason, kind: str, why: str) -> None:
    session = make()
    answer(begin(session), reason=reason)
    last = drain(session)[-1]
    assert (last["type"], last["response"]["incomplete_details"]) == (f"response.{kind}", {"reason": why})


def test_e1_a_failure_in_the_middle_is_response_failed() -> None:
    """E1, E2."""
    session = make()
    stream = begin(session)
    stream.event(Accepted("r", 5))
    stream.event(Ended("r9", "", (), finish(FinishReason.ERROR, failure=Failure("server_error", "step failed"))))
    last = drain(session)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "step failed (request r9)"}
    assert last["response"]["usage"]["output_tokens"] == 4


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


def test_c6_an_old_connection_says_so() -> None:
    """C6: running responses end, waiting and new ones get the code on which clients connect again."""
    session = make()
    stream = begin(session)
    assert create(session) == []
    session.goaway("max_age", 1000)
    answer(stream)
    assert session.due() == []
    events = drain(session)
    assert [event["type"] for event in events[-2:]] == ["response.completed", "error"]
    assert (events[-1]["status"], events[-1]["error"]["code"]) == (400, "websocket_connection_limit_reached")
    session.farewell("max_age")
    assert drain(session)[-1]["error"]["code"] == "websocket_connection_limit_reached"
    draining = make()
    draining.goaway("drain", 1000)
    assert create(draining) == []
    assert drain(draining)[-1]["status"] == 503


def test_the_history_is_bounded_and_keeps_the_latest_of_each_lane() -> None:
    history = History(max_bytes=10_000)
    history.add("lane", ({"role": "user", "content": "x"},), "quiet")
    for number in range(100):
        history.add(f"r{number}", ({"role": "user", "content": "x"},), None)
    assert len(history._entries) == MAX_OTHERS + 2
    history.find("lane")
    history.find("r99")
    history.add("big", ({"role": "user", "content": "x" * 9_995},), None)
    history.find("big")
    assert history._bytes <= 10_000
    history.add("too big", ({"role": "user", "content": "x" * 20_000},), None)
    assert history._bytes == 0


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


@given(FIELDS)
def test_no_event_whatever_raises_and_each_is_answered(fields: dict[str, Any]) -> None:
    """F4."""
    session = make()
    actions = session.receive(json.dumps({"type": "response.create", **fields}))
    assert bool(actions) != bool(drain(session))


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["create", "bad", "text", "end", "take"])), max_size=60)
)
def test_any_order_of_events_keeps_the_laws_of_a_lane(script: list[tuple[str, str]]) -> None:
    """F14: one response at a time in a lane, numbered without gaps, each create with exactly one terminal."""
    session = make()
    active: dict[str, ResponseStream] = {}
    events: list[dict[str, Any]] = []
    asked = dict.fromkeys("abc", 0)

    def act(actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, Generate)
            assert isinstance(action.stream, ResponseStream)
            lane = action.stream.create.lane or ""
            assert lane not in active
            active[lane] = action.stream
            action.stream.event(Accepted("r", 1))

    for lane, what in script:
        if what in ("create", "bad"):
            asked[lane] += 1
            act(create(session, stream_id=lane, **({} if what == "create" else {"tools": [1]})))
        elif what == "take":
            events += [json.loads(event) for event in [session.pop()] if event is not None]
        elif lane in active:
            if what == "text":
                active[lane].event(Delta("r", "t", (1,)))
            else:
                active.pop(lane).event(Ended("r", "", (), finish()))
                act(session.due())
    while active:
        active.popitem()[1].event(Ended("r", "", (), finish()))
        act(session.due())
    events += drain(session)
    for lane in "abc":
        expected, terminals = 0, 0
        for event in (event for event in events if event["stream_id"] == lane):
            if event["type"] == "error":
                assert expected == 0
                terminals += 1
                continue
            assert event["sequence_number"] == expected
            expected += 1
            if event["type"] == "response.completed":
                expected, terminals = 0, terminals + 1
        assert terminals == asked[lane]
    assert session.num_sources == 0
