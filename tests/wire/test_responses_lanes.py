"""Lanes of the Responses API: order within one, none between them, their limits."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.plugins.text.events import Accepted, Delta, Ended
from mainspring.plugins.wire.actions import Action, Generate
from mainspring.plugins.wire.responses import MAX_LANES, ResponseStream

from .driver import answer, drain, finish
from .responses_driver import begin, create, make, refusal


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
