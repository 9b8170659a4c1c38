"""The Responses API without a socket: events in, events out, against what real clients need."""

from __future__ import annotations

import json

import pytest

from mainspring.core.messages import Failure, Finish, FinishReason, Timing, Usage
from mainspring.plugins.text.events import Accepted, Delta, Ended
from mainspring.plugins.wire.actions import Cancel

from .driver import answer, drain, finish
from .responses_driver import begin, make

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
