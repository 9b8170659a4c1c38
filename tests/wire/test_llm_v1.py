"""The native protocol without a socket: text in, bytes out, compared byte by byte where it matters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.messages import Failure, Finish, FinishReason, Timing, Usage
from mainspring.plugins.text.events import Accepted, Delta, Ended, TextEvent
from mainspring.plugins.wire import llm_v1
from mainspring.plugins.wire.actions import Cancel
from mainspring.plugins.wire.llm_v1 import Session
from mainspring.plugins.wire.llm_v1_frames import DeltaFrame, decode

from .driver import drain, finish
from .llm_v1_driver import begin, make_session


def test_hello_is_the_first_frame_byte_by_byte() -> None:
    limits = {"max_message_bytes": 99}
    session = Session(server="mainspring/1", model="tiny", limits=limits, wall_clock=float, clock=float)
    assert session.hello() == (
        b'{"type":"hello","protocol":"llm.v1","server":"mainspring/1","models":["tiny"],'
        b'"limits":{"max_message_bytes":99,"max_id_chars":64,"max_retain_s":300},'
        b'"features":["cancel","coalesce","multiplex","ping","progress","resume","return_token_ids"]}'
    )
    assert session.pop() is None


def test_a_whole_generation_byte_by_byte() -> None:
    """D1, E2: text stays UTF-8, usage and timing come with the terminal, seq has no gap."""
    session = make_session()
    stream = begin(session)
    stream.event(Accepted("r1", 3))
    assert session.pop() == b'{"type":"start","id":"a","seq":0,"model":"tiny","created":1234,"rid":"r1"}'
    stream.event(Delta("r1", "漢字é 👩‍👩‍👧", (5, 6)))
    expected = '{"type":"delta","id":"a","seq":1,"text":"漢字é 👩‍👩‍👧","n":2}'
    assert session.pop() == expected.encode()
    stream.event(Ended("r1", "", (7,), finish(stop="END")))
    assert session.pop() == (
        b'{"type":"done","id":"a","seq":2,"reason":"stop","stop":"END","usage":{"input":5,"cached":2,"output":4},'
        b'"timing":{"queued":250.0,"prefill":500.0,"ttft":750.0,"decode":1250.0,"total":2000.0,"blocked":0.0}}'
    )
    assert session.pop() is None
    assert session.streams == {}


def test_deltas_join_while_the_peer_is_slow_and_nothing_is_lost() -> None:
    session = make_session()
    one, two = begin(session, "1", return_token_ids=True), begin(session, "2")
    for stream in (one, two):
        stream.event(Accepted("r" + stream.id, 3))
    for number in range(100):
        one.event(Delta("r1", f"x{number} ", (number,)))
        two.event(Delta("r2", f"y{number} ", (number,)))
    one.event(Ended("r1", "end", (100,), finish()))
    one_again = begin(session, "1")  # the id is free from the terminal on
    one_again.event(Ended("r3", "", (), finish(FinishReason.CANCELLED)))
    frames = drain(session)
    assert [(f["type"], f["id"], f["seq"]) for f in frames] == [
        ("start", "1", 0),
        ("delta", "1", 1),  # one that has ended goes on to its end
        ("done", "1", 2),
        ("start", "2", 0),
        ("done", "1", 0),
        ("delta", "2", 1),
    ]
    assert frames[1]["text"] == "".join(f"x{number} " for number in range(100)) + "end"
    assert frames[1]["tokens"] == list(range(101))
    assert frames[1]["n"] == 101
    assert frames[5]["n"] == 100
    assert "tokens" not in frames[5]


def test_tokens_without_text_are_counted_with_the_next_text() -> None:
    session = make_session()
    stream = begin(session)
    stream.event(Delta("r", "", (1,)))
    stream.event(Delta("r", "", (2,)))
    assert session.pop() is None
    stream.event(Delta("r", "é", (3,)))
    assert drain(session) == [{"type": "delta", "id": "a", "seq": 0, "text": "é", "n": 3}]
    asked = begin(session, "b", return_token_ids=True)
    asked.event(Delta("r", "", (1,)))
    assert drain(session) == [{"type": "delta", "id": "b", "seq": 0, "text": "", "n": 1, "tokens": [1]}]


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3), st.booleans()), max_size=60))
def test_any_interleaving_keeps_text_order_and_gapless_seq(script: list[tuple[int, str, bool]]) -> None:
    """E-15, 117: each stream's frames are gapless and its text complete, whenever the writer gets its turn."""
    session = make_session()
    streams = [begin(session, str(number)) for number in range(3)]
    frames: list[dict[str, Any]] = []
    sent = ["", "", ""]
    for number, text, writer_runs in script:
        streams[number].event(Delta("r", text, (1,)))
        sent[number] += text
        if writer_runs and (frame := session.pop()) is not None:
            frames.append(json.loads(frame))
    for stream in streams:
        stream.event(Ended("r", "!", (2,), finish()))
    frames += drain(session)
    for number in range(3):
        mine = [frame for frame in frames if frame["id"] == str(number)]
        assert [frame["seq"] for frame in mine] == list(range(len(mine)))
        assert "".join(frame.get("text", "") for frame in mine) == sent[number] + "!"
        assert [frame["type"] for frame in mine].count("done") == 1
        assert mine[-1]["type"] == "done"
    assert session.backlog_bytes == 0


def test_timing_leaves_out_what_never_happened() -> None:
    session = make_session()
    stream = begin(session)
    usage = Usage(input=0, cached=0, output=0)
    stream.event(Ended("r", "", (), Finish(FinishReason.CANCELLED, usage, Timing(arrival=1.0, finished=1.5))))
    (done,) = drain(session)
    assert done["timing"] == {"total": 500.0, "blocked": 0.0}
    assert done["seq"] == 0
    assert "stop" not in done


def test_failure_is_an_error_frame_with_usage_and_the_request_id() -> None:
    """E1, E2."""
    session = make_session()
    stream = begin(session)
    stream.event(Accepted("r9", 3))
    stream.event(Ended("r9", "tail", (4,), finish(FinishReason.ERROR, failure=Failure("server_error", "step failed"))))
    start, delta, error = drain(session)
    assert (start["seq"], delta["seq"], delta["text"]) == (0, 1, "tail")
    assert error == {
        "type": "error",
        "id": "a",
        "seq": 2,
        "code": "server_error",
        "status": 500,
        "message": "step failed (request r9)",
        "usage": {"input": 5, "cached": 2, "output": 4},
    }


def test_cancel_names_a_live_stream_or_is_ignored() -> None:
    """A4: idempotent; the terminal comes from the engine, with usage."""
    session = make_session()
    cancel = '{"type":"cancel","id":"a"}'
    assert session.receive(cancel) == []
    stream = begin(session)
    assert session.receive(cancel) == [Cancel(stream)]
    assert session.receive(cancel) == [Cancel(stream)]
    stream.event(Ended("r", "", (), finish(FinishReason.CANCELLED)))
    assert session.receive(cancel) == []
    (done,) = drain(session)
    assert done["reason"] == "cancelled"
    assert done["usage"]["output"] == 4


def test_ping_comes_back_with_its_fields() -> None:
    session = make_session()
    assert session.receive('{"type":"ping","id":"é","t":[1,{"a":null}],"seq":1.5}') == []
    assert session.pop() == '{"id":"é","t":[1,{"a":null}],"seq":1.5,"type":"pong"}'.encode()
    big = "9" * 40
    assert session.receive(f'{{"type":"ping","n":{big}}}') == []
    assert session.pop() == f'{{"n":{big},"type":"pong"}}'.encode()


COMMANDS = st.tuples(
    st.sampled_from(["generate", "wrong", "cancel", "ping", "garbage", "accept", "delta", "end", "write"]),
    st.sampled_from(["a", "b", "c"]),
)


@given(st.lists(COMMANDS, max_size=80))
def test_any_order_of_messages_keeps_the_laws(script: list[tuple[str, str]]) -> None:
    """Every generate ends with exactly one terminal, ``seq`` is gapless, and what is no stream's has no ``seq``."""
    session = make_session()
    frames: list[dict[str, Any]] = []
    asked = 0
    for command, name in script:
        live = session.streams.get(name)
        if command in ("generate", "wrong"):
            asked += live is None
            prompt = "x" if command == "generate" else ""
            session.receive(json.dumps({"type": "generate", "id": name, "prompt": prompt}))
        elif command == "cancel":
            assert session.receive(json.dumps({"type": "cancel", "id": name})) == ([Cancel(live)] if live else [])
        elif command in ("ping", "garbage"):
            session.receive('{"type":"ping"}' if command == "ping" else "{")
        elif command == "write":
            frames += [json.loads(frame) for frame in [session.pop()] if frame is not None]
        elif live is not None:
            events: dict[str, TextEvent] = {
                "accept": Accepted("r", 1),
                "delta": Delta("r", "t", (1,)),
                "end": Ended("r", "", (), finish()),
            }
            live.event(events[command])
    for live in list(session.streams.values()):
        live.event(Ended("r", "u", (1,), finish()))
    frames += drain(session)
    expected = dict.fromkeys("abc", 0)
    num_terminals = 0
    for frame in frames:
        if "id" not in frame:
            assert "seq" not in frame
            continue
        assert frame["seq"] == expected[frame["id"]]
        expected[frame["id"]] += 1
        if frame["type"] in ("done", "error"):
            expected[frame["id"]] = 0
            num_terminals += 1
    assert num_terminals == asked
    assert set(expected.values()) == {0}


def test_every_frame_is_one_object_with_a_type_and_reads_back() -> None:
    """F6: what the server writes is what the client's reader understands."""
    session = make_session()
    stream = begin(session)
    stream.event(Delta("r", '"\n\u2028', (1,)))
    frame = session.pop() or b""
    assert b"\n" not in frame
    assert decode(frame) == DeltaFrame(id="a", seq=0, text='"\n\u2028', n=1)
    assert decode('{"type":"goaway","grace_ms":1}') is None  # its reason is missing
    assert decode('{"type":"news","x":1}') is None
    assert decode('{"type":"pong","x":1}') is not None


def test_the_protocol_does_no_io() -> None:
    folder = Path(llm_v1.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert "class Session" in source
    assert not re.search(r"import (asyncio|socket|time|websockets)", source)
