"""What ``previous_response_id`` finds."""

from __future__ import annotations

from mainspring.plugins.wire.responses_history import MAX_OTHERS, History

from .driver import answer, drain
from .responses_driver import begin, make, refusal


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


def test_the_history_is_bounded_and_keeps_the_latest_of_each_lane() -> None:
    history = History(max_bytes=10_000)
    history.add("lane", ({"role": "user", "content": "x"},), "quiet")
    for number in range(100):
        history.add(f"r{number}", ({"role": "user", "content": "x"},), None)
    assert len(history._entries) == MAX_OTHERS + 2
    history.find("lane")
    history.find("r99")
    history.add("big", ({"role": "user", "content": "x" * 9_700},), None)
    history.find("big")
    assert history._bytes <= 10_000
    history.add("too big", ({"role": "user", "content": "x" * 20_000},), None)
    assert history._bytes == 0
    history.add("many", ({"role": "user", "content": ""},) * 100, None)  # each costs memory without a word in it
    assert history._bytes == 0
