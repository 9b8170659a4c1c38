"""Back-pressure and coalescing of answers on their way out, without a socket or a clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import ClientError
from mainspring.core.messages import Finish, FinishReason, Timing, Usage
from mainspring.plugins.text.events import Accepted, Delta, Ended
from mainspring.plugins.wire.actions import Generate, Resume
from mainspring.plugins.wire.llm_v1 import MAX_RING_BYTES, Session, Stream
from mainspring.plugins.wire.outbox import MAX_OUTBOX_BYTES, MAX_SOURCE_BYTES

from .driver import drain

END = Finish(FinishReason.LENGTH, Usage(1, 0, 2), Timing(0.0, 0.1, 0.2, 0.3))


class Flow:
    """Writes down what a stream asks for."""

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.delays: list[float] = []

    def pressure(self, paused: bool) -> None:
        self.asked.append(paused)

    def later(self, delay_s: float) -> None:
        self.delays.append(delay_s)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock | None = None) -> Session:
    return Session(server="s", model="tiny", limits={}, wall_clock=lambda: 5.0, clock=clock or Clock())


def begin(session: Session, name: str = "a", **fields: Any) -> tuple[Stream, Flow]:
    (action,) = session.receive(json.dumps({"type": "generate", "id": name, "prompt": "x", **fields}))
    assert isinstance(action, Generate)
    stream = action.stream
    assert isinstance(stream, Stream)
    stream.flow = flow = Flow()
    return stream, flow


def test_b1_a_full_stream_is_paused_and_goes_on_when_its_text_is_taken() -> None:
    """B1, B2, E-08: bounded, nothing dropped, and the time is reported as ``blocked``."""
    clock = Clock()
    session = make(clock)
    stream, flow = begin(session)
    stream.event(Delta("r", "x" * MAX_SOURCE_BYTES, (1,)))
    assert flow.asked == []
    stream.event(Delta("r", "y", (2,)))
    stream.event(Delta("r", "z", (3,)))  # was on its way
    assert flow.asked == [True]
    clock.now = 2.5
    (delta,) = drain(session)
    assert flow.asked == [True, False]
    assert (len(delta["text"]), delta["n"]) == (MAX_SOURCE_BYTES + 2, 3)
    stream.event(Ended("r", "", (), END))
    (done,) = drain(session)
    assert done["timing"]["blocked"] == 2500.0


def test_b1_many_streams_of_one_connection_share_its_memory() -> None:
    session = make()
    begun = [begin(session, f"s{number}") for number in range(32)]
    for stream, _ in begun:
        stream.event(Delta("r", "x" * (MAX_OUTBOX_BYTES // 32 + 1), (1,)))
    assert [flow.asked for _, flow in begun] == [[True]] * 32


def test_ids_that_were_asked_for_count_as_memory() -> None:
    session = make()
    stream, flow = begin(session, return_token_ids=True)
    for number in range(5000):
        stream.event(Delta("r", "", (number,)))
    assert flow.asked == [True]


def test_the_end_of_a_paused_stream_asks_for_nothing_more() -> None:
    session = make()
    stream, flow = begin(session)
    stream.event(Delta("r", "x" * (MAX_SOURCE_BYTES + 1), (1,)))
    stream.event(Ended("r", "y" * (MAX_SOURCE_BYTES + 1), (), END))
    drain(session)
    assert flow.asked == [True]


def test_streams_take_turns() -> None:
    """B5: one with a lot to say does not hold the others up."""
    session = make()
    one, _ = begin(session, "1")
    two, _ = begin(session, "2")
    for stream in (one, two):
        stream.event(Accepted("r", 1))
        stream.event(Delta("r", "t", (1,)))
    assert [frame["id"] for frame in drain(session)] == ["1", "2", "1", "2"]


def test_coalesce_holds_back_deltas_but_neither_the_first_nor_the_end() -> None:
    session = make()
    stream, flow = begin(session, coalesce_ms=250)
    stream.event(Accepted("r", 1))
    assert len(drain(session)) == 1
    stream.event(Delta("r", "a", (1,)))
    assert [frame["text"] for frame in drain(session)] == ["a"]
    stream.event(Delta("r", "b", (2,)))
    stream.event(Delta("r", "c", (3,)))
    assert drain(session) == []
    assert flow.delays == [0.25]
    stream.release()
    assert [(frame["text"], frame["n"]) for frame in drain(session)] == [("bc", 2)]
    stream.release()
    stream.event(Delta("r", "d", (4,)))
    stream.event(Ended("r", "e", (5,), END))
    delta, done = drain(session)
    assert (delta["text"], done["type"]) == ("de", "done")


def test_e5_resume_repeats_nothing_and_leaves_no_gap() -> None:
    """E5, byte by byte: what was sent and lost is sent again as it was, then comes what was not sent yet."""
    session = make()
    stream, _ = begin(session, retain_s=30)
    stream.event(Accepted("r", 1))
    sent = [session.pop()]
    assert json.loads(sent[0] or b"")["resume"] == stream.token
    for word in ("one ", "two "):
        stream.event(Delta("r", word, (1,)))
        sent.append(session.pop())
    stream.detach()
    stream.event(Delta("r", "three ", (2,)))
    stream.event(Delta("r", "four", (3,)))
    assert session.pop() is None
    assert session.streams == {}
    other = make()
    other.attach(stream, 0)
    assert other.streams == {"a": stream}
    assert [other.pop(), other.pop()] == sent[1:]
    (rest,) = drain(other)
    assert rest == {"type": "delta", "id": "a", "seq": 3, "text": "three four", "n": 2}
    stream.event(Ended("r", "", (), END))
    assert [frame["seq"] for frame in drain(other)] == [4]
    third = make()
    third.attach(stream, -1)  # after its end, from the beginning
    assert [frame["seq"] for frame in drain(third)] == [0, 1, 2, 3, 4]
    assert third.streams == {}


def test_a_second_attach_steals_the_stream() -> None:
    old, new = make(), make()
    stream, _ = begin(old, retain_s=30)
    stream.event(Accepted("r", 1))
    drain(old)
    stream.event(Delta("r", "waiting", (1,)))
    new.attach(stream, 0)
    (told,) = drain(old)
    assert (told["code"], told["status"], told["id"], "seq" in told) == ("detached", 409, "a", False)
    assert [frame["text"] for frame in drain(new)] == ["waiting"]
    stream.event(Ended("r", "", (), END))
    assert drain(old) == []
    assert [frame["type"] for frame in drain(new)] == ["done"]
    assert (old.num_sources, new.num_sources) == (0, 0)


def test_resume_behind_what_is_kept_or_before_what_was_sent_is_refused() -> None:
    session = make()
    stream, _ = begin(session, retain_s=30)
    for _ in range(5):
        stream.event(Delta("r", "x" * (MAX_RING_BYTES // 4), (1,)))
        session.pop()
    with pytest.raises(ClientError) as expired:
        make().attach(stream, 0)
    assert expired.value.code == "resume_expired"
    with pytest.raises(ClientError) as future:
        make().attach(stream, 5)
    assert (future.value.code, future.value.param) == ("invalid_request", "after")
    assert stream.outbox is session
    make().attach(stream, 3)


def test_a_detached_stream_is_paused_when_its_ring_is_full() -> None:
    session = make()
    stream, flow = begin(session, retain_s=30)
    stream.event(Delta("r", "x" * (MAX_SOURCE_BYTES + 1), (1,)))
    assert flow.asked == [True]
    stream.detach()
    assert flow.asked == [True, False]  # there is more room without a connection
    stream.event(Delta("r", "x" * MAX_RING_BYTES, (1,)))
    assert flow.asked == [True, False, True]
    other = make()
    other.attach(stream, -1)
    (delta,) = drain(other)
    assert len(delta["text"]) == MAX_SOURCE_BYTES + 1 + MAX_RING_BYTES
    assert flow.asked == [True, False, True, False]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "other"}, "model_not_found", "model"),
        ({"model": 7}, "invalid_request", "model"),
        ({"retain_s": -1}, "invalid_request", "retain_s"),
        ({"retain_s": 301}, "invalid_request", "retain_s"),
        ({"retain_s": True}, "invalid_request", "retain_s"),
        ({"coalesce_ms": 10_001}, "invalid_request", "coalesce_ms"),
        ({"coalesce_ms": "5"}, "invalid_request", "coalesce_ms"),
        ({"progress": 1}, "invalid_request", "progress"),
        ({"logprobs": 3}, "unsupported_parameter", "logprobs"),
        ({"format": {}}, "unsupported_parameter", "format"),
    ],
)
def test_options_of_a_generate_are_checked(fields: dict[str, Any], code: str, param: str) -> None:
    session = make()
    assert session.receive(json.dumps({"type": "generate", "id": "a", "prompt": "x", **fields})) == []
    (error,) = drain(session)
    assert (error["code"], error["param"], error["id"], error["seq"]) == (code, param, "a", 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "token"),
        ({"token": "", "after": 0}, "token"),
        ({"token": "t"}, "after"),
        ({"token": "t", "after": -2}, "after"),
        ({"token": "t", "after": True}, "after"),
        ({"token": "t", "after": 0, "afetr": 1}, "afetr"),
    ],
)
def test_a_resume_is_checked(fields: dict[str, Any], param: str) -> None:
    session = make()
    assert session.receive(json.dumps({"type": "resume", "id": "a", **fields})) == []
    (error,) = drain(session)
    assert error["param"] == param


def test_a_resume_is_an_action_unless_its_id_is_in_use() -> None:
    session = make()
    text = '{"type":"resume","id":"a","token":"t","after":-1}'
    assert session.receive(text) == [Resume("a", "t", -1)]
    begin(session)
    assert session.receive(text) == []
    (error,) = drain(session)
    assert (error["code"], "id" in error) == ("duplicate_id", False)


def test_the_served_model_and_its_aliases_may_be_named() -> None:
    session = Session(server="s", model="tiny", limits={}, wall_clock=float, clock=float, aliases=("gpt",))
    assert json.loads(session.hello())["models"] == ["tiny", "gpt"]
    begin(session, "a", model="gpt", cache_salt="mine")
    begin(session, "b", model="tiny")


def test_after_goaway_nothing_new_is_taken() -> None:
    session = make()
    stream, _ = begin(session)
    session.goaway("drain", 30_000)
    session.goaway("max_age", 1)
    assert session.receive('{"type":"generate","id":"b","prompt":"x"}') == []
    stream.event(Ended("r", "", (), END))
    goaway, refused, done = drain(session)
    assert goaway == {"type": "goaway", "reason": "drain", "grace_ms": 30_000}
    assert (refused["code"], refused["status"], refused["id"]) == ("draining", 503, "b")
    assert done["type"] == "done"


def test_progress_has_no_seq() -> None:
    session = make()
    stream, _ = begin(session, progress=True)
    stream.news("queued")
    stream.news("prefill", 16, 64)
    assert drain(session) == [
        {"type": "progress", "id": "a", "state": "queued"},
        {"type": "progress", "id": "a", "state": "prefill", "done": 16, "total": 64},
    ]


STEPS = st.lists(st.tuples(st.sampled_from(["text", "take", "drop", "end"]), st.integers(0, 6)), max_size=60)


@given(STEPS)
def test_e5_any_sequence_of_drops_and_resumes_gives_the_whole_text(steps: list[tuple[str, int]]) -> None:
    """E5: the client resumes behind the last frame that reached it; frames sent and lost come again."""
    session = make()
    stream, _ = begin(session, retain_s=30, return_token_ids=True)
    stream.event(Accepted("r", 1))
    expected, got, pending = "", [], list[bytes]()  # pending: sent, not yet received
    for what, number in steps:
        if what == "text" and stream.finish is None:
            stream.event(Delta("r", f"{number} ", (number,)))
            expected += f"{number} "
        elif what == "take" and (frame := session.pop()) is not None:
            pending.append(frame)
            if number % 2:
                got += pending
                pending = []
        elif what == "drop":
            stream.detach()
            session, pending = make(), []
            session.attach(stream, json.loads(got[-1])["seq"] if got else -1)
        elif what == "end" and stream.finish is None:
            stream.event(Ended("r", "", (), END))
    if stream.finish is None:
        stream.event(Ended("r", "", (), END))
    got += pending
    while (frame := session.pop()) is not None:
        got.append(frame)
    frames = [json.loads(frame) for frame in got]
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert "".join(frame.get("text", "") for frame in frames) == expected
    assert [frame["type"] for frame in frames].count("done") == 1
