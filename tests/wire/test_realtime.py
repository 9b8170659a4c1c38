"""The Realtime API, text only, without a socket."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.messages import Failure, FinishReason
from mainspring.plugins.text.events import Accepted, Delta, Ended
from mainspring.plugins.wire import realtime
from mainspring.plugins.wire.actions import Action, Cancel, Close, Generate
from mainspring.plugins.wire.realtime import RealtimeSession, RealtimeStream

from .driver import drain, finish
from .schemas import check_server_frame


def make() -> RealtimeSession:
    session = RealtimeSession(model="tiny", max_context=2048, clock=lambda: 0.0, names=("fake",))
    created = json.loads(session.hello() or b"")
    check_server_frame(created)
    assert (created["type"], created["session"]["model"]) == ("session.created", "tiny")
    return session


def send(session: RealtimeSession, kind: str, /, **fields: Any) -> list[Action]:
    return session.receive(json.dumps({"type": kind, **fields}))


def say(session: RealtimeSession, text: str = "hi", **fields: Any) -> list[dict[str, Any]]:
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
        **fields.pop("item", {}),
    }
    assert send(session, "conversation.item.create", item=item, **fields) == []
    return drain(session)


def begin(session: RealtimeSession, **response: Any) -> RealtimeStream:
    (action,) = send(session, "response.create", **({"response": response} if response else {}))
    assert isinstance(action, Generate)
    assert isinstance(action.stream, RealtimeStream)
    return action.stream


def answer(stream: RealtimeStream, text: str = "Hello", reason: FinishReason = FinishReason.STOP, **more: Any) -> None:
    stream.event(Accepted("r", 5))
    stream.event(Delta("r", text, (1,)))
    stream.event(Ended("r", "", (), finish(reason, **more)))


def refusal(session: RealtimeSession, kind: str, /, **fields: Any) -> dict[str, Any]:
    assert send(session, kind, event_id="mine", **fields) == []
    (event,) = drain(session)
    assert (event["type"], event["error"]["event_id"]) == ("error", "mine")
    error: dict[str, Any] = event["error"]
    return error


def test_a_turn_has_every_event_in_order() -> None:
    session = make()
    assert send(session, "session.update", session={"type": "realtime", "instructions": "be brief"}) == []
    (updated,) = drain(session)
    assert updated["session"]["instructions"] == "be brief"
    added, done = say(session)
    assert (added["type"], done["type"]) == ("conversation.item.added", "conversation.item.done")
    stream = begin(session)
    assert stream.request.messages == ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
    answer(stream)
    events = drain(session)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    response = events[-1]["response"]
    assert (response["status"], response["output"][0]["content"]) == (
        "completed",
        [{"type": "output_text", "text": "Hello"}],
    )
    assert response["usage"] == {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9}
    assert len({event["event_id"] for event in events}) == len(events)
    assert events[2]["previous_item_id"] == added["item"]["id"]
    say(session, "more")
    messages = begin(session).request.messages or ()
    assert [message["content"] for message in messages] == ["be brief", "hi", "Hello", "more"]


@pytest.mark.parametrize(
    ("reason", "status", "details"),
    [
        (FinishReason.CANCELLED, "cancelled", {"type": "cancelled", "reason": "client_cancelled"}),
        (FinishReason.LENGTH, "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}),
        (FinishReason.DEADLINE, "incomplete", {"type": "incomplete", "reason": "deadline"}),
    ],
)
def test_ends(reason: FinishReason, status: str, details: dict[str, str]) -> None:
    session = make()
    say(session)
    stream = begin(session)
    assert send(session, "response.cancel") == [Cancel(stream)]
    assert send(session, "response.cancel", response_id=stream.id) == [Cancel(stream)]
    answer(stream, reason=reason)
    response = drain(session)[-1]["response"]
    assert (response["status"], response["status_details"]) == (status, details)
    assert response["output"][0]["status"] == "incomplete"


def test_failures() -> None:
    """E1, E9."""
    session = make()
    say(session)
    answer(begin(session), reason=FinishReason.ERROR, failure=Failure("server_error", "step failed"))
    response = drain(session)[-1]["response"]
    assert response["status_details"] == {"type": "failed", "error": {"type": "server_error", "code": "server_error"}}
    (action,) = send(session, "response.create", event_id="mine")
    assert isinstance(action, Generate)
    action.stream.event(Ended("r", "", (), finish(FinishReason.ERROR, failure=Failure("queue_full", "full"))))
    (error,) = drain(session)
    assert (error["error"]["code"], error["error"]["event_id"]) == ("queue_full", "mine")
    begin(session)


def test_nothing_to_cancel_is_an_error_and_the_session_lives() -> None:
    session = make()
    assert refusal(session, "response.cancel")["code"] == "response_cancel_not_active"
    say(session)
    begin(session)


def test_one_writer_and_several_beside_it() -> None:
    session = make()
    say(session)
    writer = begin(session)
    assert refusal(session, "response.create")["code"] == "conversation_already_has_active_response"
    first = session.items[0]["id"]
    references = [{"type": "item_reference", "id": first}, {"type": "message", "role": "user", "content": "aside"}]
    beside = begin(session, conversation="none", metadata={"topic": "x"}, input=references, instructions="Sys")
    assert [message["content"] for message in beside.request.messages or ()] == ["Sys", "hi", "aside"]
    assert session.num_sources == 2
    answer(beside, "no trace")
    response = drain(session)[-1]["response"]
    assert (response["metadata"], response["conversation_id"]) == ({"topic": "x"}, None)
    answer(writer)
    drain(session)
    assert [item["content"][0]["text"] for item in session.items] == ["hi", "Hello"]
    assert session.num_sources == 0


def test_items_have_their_place_and_can_be_deleted_and_retrieved() -> None:
    session = make()
    say(session, "second", item={"id": "two"})
    say(session, "first", previous_item_id="root", item={"id": "one"})
    say(session, "last", previous_item_id="two", item={"id": "three"})
    assert [item["id"] for item in session.items] == ["one", "two", "three"]
    assert send(session, "conversation.item.retrieve", item_id="two") == []
    assert drain(session)[0]["item"]["content"] == [{"type": "input_text", "text": "second"}]
    assert send(session, "conversation.item.delete", item_id="two") == []
    assert drain(session)[0]["item_id"] == "two"
    assert refusal(session, "conversation.item.delete", item_id="two")["code"] == "not_found"


AUDIO = {"output_modalities": ["audio"]}


@pytest.mark.parametrize(
    ("kind", "fields", "code", "param"),
    [
        ("input_audio_buffer.append", {"audio": ""}, "unsupported_event", "type"),
        ("conversation.item.truncate", {}, "unsupported_event", "type"),
        ("session.updat", {}, "unknown_event", "type"),
        ("session.update", {}, "invalid_request", "session"),
        (
            "session.update",
            {"session": {"output_modalities": ["audio"]}},
            "unsupported_parameter",
            "session.output_modalities",
        ),
        ("session.update", {"session": {"audio": {}}}, "unsupported_parameter", "session.audio"),
        ("session.update", {"session": {"tools": [{}]}}, "unsupported_parameter", "session.tools"),
        ("session.update", {"session": {"model": "other"}}, "model_not_found", "session.model"),
        ("response.create", {}, "invalid_request", "conversation"),
        ("response.create", {"response": {"voice": "x"}}, "unsupported_parameter", "response.voice"),
        ("response.create", {"response": {"conversation": "x"}}, "invalid_request", "response.conversation"),
        ("response.create", {"response": {"max_output_tokens": 0}}, "invalid_request", "response.max_output_tokens"),
        ("response.create", {"response": {"input": [{"type": "message"}]}}, "invalid_request", "input.role"),
        ("conversation.item.create", {"item": {"type": "function_call"}}, "unsupported_parameter", "item"),
        ("conversation.item.create", {}, "invalid_request", "item"),
    ],
)
def test_what_is_not_offered_or_wrong_is_named(kind: str, fields: dict[str, Any], code: str, param: str) -> None:
    error = refusal(make(), kind, **fields)
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(("item_id", "good"), [("x" * 64, True), ("x" * 65, False), ("", False), (7, False)])
def test_ids_of_items_are_short(item_id: Any, good: bool) -> None:
    """They are kept with the item, and no limit on text would count them."""
    session = make()
    item = {"id": item_id, "type": "message", "role": "user", "content": "hi"}
    send(session, "conversation.item.create", item=item)
    answers = [event["type"] for event in drain(session)]
    assert answers == (["conversation.item.added", "conversation.item.done"] if good else ["error"])
    assert len(session.items) == good


def test_a_conversation_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "MAX_CHARS", 10)
    session = make()
    say(session, "x" * 8)
    error = refusal(session, "conversation.item.create", item={"type": "message", "role": "user", "content": "xxx"})
    assert error["code"] == "context_length_exceeded"


def test_answers_count_as_items_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses with an input of their own add to the conversation as well, unless they are told not to."""
    monkeypatch.setattr(realtime, "MAX_ITEMS", 2)
    session, own = make(), {"input": [{"type": "message", "role": "user", "content": "x"}]}
    for _ in range(2):
        answer(begin(session, **own))
    drain(session)
    error = refusal(session, "response.create", response=own)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "response.conversation")
    answer(begin(session, conversation="none", **own))
    drain(session)
    assert (len(session.items), session.num_sources) == (2, 0)
    assert send(session, "conversation.item.delete", item_id=session.items[0]["id"]) == []
    begin(session, **own)


def test_the_characters_of_answers_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "MAX_CHARS", 5)
    session = make()
    answer(begin(session, input=[{"type": "message", "role": "user", "content": "x"}]), "Hello")
    drain(session)
    assert refusal(session, "response.create")["code"] == "context_length_exceeded"


def test_draining_takes_nothing_new() -> None:
    session = make()
    say(session)
    session.goaway("drain", 1)
    assert refusal(session, "response.create")["code"] == "draining"


def test_f4_ten_bad_events_in_a_row_close_1008() -> None:
    session = make()
    for text in ["?", "[]", "{}"] * 3:
        assert session.receive(text) == []
    (action,) = session.receive('{"type":"x"}')
    assert isinstance(action, Close)
    assert action.code == 1008


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "id", "role", "content"]), inner)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(RealtimeSession._handlers)),
    st.dictionaries(
        st.sampled_from(["item", "session", "response", "item_id", "previous_item_id", "response_id"]), JSON
    ),
)
def test_no_event_whatever_raises_and_each_is_answered(kind: str, fields: dict[str, Any]) -> None:
    session = make()
    actions = send(session, kind, **fields)
    assert bool(actions) != bool(drain(session))
