"""What the native protocol refuses: one error frame each, never silence."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import ERROR_KINDS, ClientError
from mainspring.plugins.text.events import Accepted, Ended
from mainspring.plugins.wire.actions import Close

from .driver import drain, finish
from .llm_v1_driver import begin, make_session, refusal


@pytest.mark.parametrize("code", sorted(ERROR_KINDS))
def test_every_code_has_its_status_and_load_a_retry_hint(code: str) -> None:
    session = make_session()
    stream = begin(session)
    stream.refuse(ClientError(code, "why", "field"))
    (error,) = drain(session)
    assert (error["status"], error["param"], error["seq"]) == (ERROR_KINDS[code].status, "field", 0)
    assert ("retry_after_ms" in error) == (ERROR_KINDS[code].fault == "load")


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("", "invalid_json", None),
        ("nonsense", "invalid_json", None),
        ('{"type":"ping"', "invalid_json", None),
        ('{"type":"ping","x":NaN}', "invalid_json", None),
        ('{"type":"ping","x":"\\ud800"}', "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ("[]", "invalid_request", None),
        ('"generate"', "invalid_request", None),
        ("null", "invalid_request", None),
        ("{}", "invalid_request", "type"),
        ('{"type":7}', "invalid_request", "type"),
        ('{"type":"generat"}', "unknown_event", "type"),
        ('{"type":"cancel"}', "invalid_request", "id"),
        ('{"type":"cancel","id":"a","reason":1}', "unsupported_parameter", "reason"),
        ('{"type":"generate","prompt":"x"}', "invalid_request", "id"),
        ('{"type":"generate","id":7,"prompt":"x"}', "invalid_request", "id"),
        ('{"type":"generate","id":"","prompt":"x"}', "invalid_request", "id"),
        ('{"type":"generate","id":"a b","prompt":"x"}', "invalid_request", "id"),
        ('{"type":"generate","id":"a\\n","prompt":"x"}', "invalid_request", "id"),
        ('{"type":"generate","id":"é","prompt":"x"}', "invalid_request", "id"),
        ('{"type":"generate","id":"' + "x" * 65 + '","prompt":"x"}', "invalid_request", "id"),
    ],
)
def test_a_frame_that_starts_nothing_is_answered_without_id(text: str, code: str, param: str | None) -> None:
    """F4, D3: one error frame each, never silence; without id, so that no stream takes it for its end."""
    frame = refusal(make_session(), text)
    assert (frame["code"], frame.get("param")) == (code, param)
    assert "id" not in frame
    assert "seq" not in frame


def test_unknown_names_get_the_nearest_valid_one() -> None:
    """F-01."""
    session = make_session()
    assert "did you mean 'generate'?" in refusal(session, '{"type":"generat"}')["message"]
    frame = refusal(session, '{"type":"generate","id":"a","prompt":"x","temprature":1}')
    assert (frame["code"], frame["param"], frame["id"], frame["seq"]) == ("unsupported_parameter", "temprature", "a", 0)
    assert "did you mean 'temperature'?" in frame["message"]
    assert session.streams == {}


def test_ids_of_1_to_64_characters_are_echoed() -> None:
    session = make_session()
    for stream_id in ("x", "A-Z_a.z-09", "x" * 64):
        assert begin(session, stream_id).id == stream_id


def test_duplicate_id_leaves_the_first_alone() -> None:
    """E-02: the refusal has no id, because an error with the id of a live stream is that stream's end."""
    session = make_session()
    stream = begin(session)
    for text in ('{"type":"generate","id":"a","prompt":"x"}', '{"type":"generate","id":"a","prompt":7}'):
        frame = refusal(session, text)
        assert "id" not in frame
        assert "seq" not in frame
    stream.event(Accepted("r1", 1))
    stream.event(Ended("r1", "", (), finish()))
    assert [(f["type"], f["seq"]) for f in drain(session)] == [("start", 0), ("done", 1)]


def test_duplicate_id_has_its_own_code() -> None:
    session = make_session()
    begin(session)
    frame = refusal(session, '{"type":"generate","id":"a","prompt":"x"}')
    assert (frame["code"], frame["param"]) == ("duplicate_id", "id")
    assert "'a'" in frame["message"]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_messages_are_nested_64_levels_deep_at_most(as_bytes: bool) -> None:
    """What is repeated to the peer must be writable, however much of the stack is in use then."""

    def ping(levels: int) -> str | bytes:
        text = '{"type":"ping","x":' + "[{}," * (levels - 2) + "[]" + "]" * (levels - 2) + ',"y":[],"z":[]}'
        return text.encode() if as_bytes else text

    session = make_session()
    assert session.receive(ping(64)) == session.receive(ping(65)) == session.receive(ping(900)) == []
    pong, *refused = drain(session)
    assert pong == {**json.loads(ping(64)), "type": "pong"}
    assert [frame["code"] for frame in refused] == ["invalid_json"] * 2
    assert session.receive(json.dumps({"type": "ping", "wide": [[]] * 1000})) == []
    assert drain(session)[0]["type"] == "pong"


def test_ten_bad_frames_in_a_row_close_1008() -> None:
    """F4, E-10."""
    session = make_session()
    for _ in range(9):
        assert session.receive("?") == []
    begin(session)  # a good one starts the count again
    for _ in range(9):
        assert session.receive("[]") == []
    (action,) = session.receive('{"type":"what"}')
    assert isinstance(action, Close)
    assert action.code == 1008
    assert len(drain(session)) == 19


def test_rejected_generates_are_not_abuse() -> None:
    session = make_session()
    for number in range(30):
        assert session.receive(f'{{"type":"generate","id":"{number}","prompt":7}}') == []
    assert {(f["code"], f["param"], f["seq"]) for f in drain(session)} == {("invalid_request", "prompt", 0)}


@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.sampled_from(["type", "id", "prompt", "stop", "x"]), inner, max_size=4)
            ),
        ).map(lambda value: json.dumps(value, ensure_ascii=False)),
    )
)
def test_no_text_whatever_raises(text: str | bytes) -> None:
    if isinstance(text, str) and re.search("[\ud800-\udfff]", text):
        return  # not UTF-8: the WebSocket library has refused it already
    session = make_session()
    actions = session.receive(text)
    assert actions or drain(session)
