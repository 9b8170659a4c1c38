"""The text edge against a recording port: what is posted, and what sinks are told."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.core.messages import (
    Cancel,
    Failure,
    FinishReason,
    Note,
    Pause,
    Resume,
    Stop,
    Submit,
    Usage,
)
from mainspring.plugins.schema import parse
from mainspring.plugins.text.edge import ORDINARY_THREADS
from mainspring.plugins.text.events import Accepted, Delta

from .harness import GatedModel, Sink, engine, finish, opened, until

pytestmark = pytest.mark.anyio
STOP, LENGTH, CANCELLED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED
DEADLINE, ERROR = FinishReason.DEADLINE, FinishReason.ERROR


async def test_a_request_from_prompt_to_end() -> None:
    async with engine() as running:
        rid, sink = running.open("hello", max_tokens=5, seed=7, priority=2, tenant="t", cache_salt="s", deadline_ms=500)
        assert sink.events == []  # nothing before open has returned
        await until(lambda: running.port.of(Submit))
        (submit,) = running.port.of(Submit)
        assert submit.prompt_ids == running.edge.model.encode("hello") and submit.rid == rid
        assert (submit.priority, submit.tenant, submit.cache_salt) == (2, "t", "s")
        assert (submit.deadline, submit.received, submit.sampling.seed) == (100.5, 100.0, 7)
        await running.emit((rid, ""))
        await running.emit((rid, "ab"))
        await running.emit((rid, "c", finish(LENGTH, 3)))
        assert sink.events[:2] == [Accepted(rid, len(submit.prompt_ids)), Delta(rid, "ab", (97, 98))]
        assert (sink.end.text, sink.end.token_ids, sink.end.finish) == ("c", (99,), finish(LENGTH, 3))
        assert running.edge.num_live == 0
        assert [(note.rid, note.point) for note in running.port.of(Note)] == [
            (rid, "text_in"),
            (rid, "text_out"),
            (rid, "text_out"),
        ]
        first, _, last = running.port.of(Note)
        assert first.facts == {"chars": 5, "tokens": 3, "encode_s": 0.0, "truncated": False}
        assert last.facts == {"tokens": 3, "chars": 3, "reason": "length"}


async def test_a_missing_seed_is_drawn_and_travels_in_the_submit() -> None:
    async with engine() as running:
        for _ in range(2):
            running.open("a")
        await until(lambda: len(running.port.of(Submit)) == 2)
        assert len({submit.sampling.seed for submit in running.port.of(Submit)}) == 2
        assert len({submit.rid for submit in running.port.of(Submit)}) == 2


async def test_half_a_character_waits_for_its_rest_d01() -> None:
    async with engine() as running:
        rid, sink = await running.accepted(max_tokens=9)
        for byte in "é漢".encode():
            await running.emit_ids((rid, (byte,)))
        await running.emit_ids((rid, (0xE6,), finish(LENGTH, 6)))
        assert [event.text for event in sink.events[1:] if isinstance(event, Delta)] == ["é", "漢"]
        assert sink.end.text == "\ufffd"  # cut inside a character
        assert sink.token_ids == (*"é漢".encode(), 0xE6)


async def test_token_ids_come_each_step_if_asked_for_and_are_always_complete_d08() -> None:
    async with engine() as running:
        asked, with_ids = await running.accepted(return_token_ids=True)
        other, without = await running.accepted()
        for byte in "é".encode():
            await running.emit_ids((asked, (byte,)), (other, (byte,)))
        assert with_ids.events[1:] == [Delta(asked, "", (0xC3,)), Delta(asked, "é", (0xA9,))]
        assert without.events[1:] == [Delta(other, "é", (0xC3, 0xA9))]


async def test_special_tokens_are_shown_if_asked_for_d08() -> None:
    async with engine() as running:
        hidden, first = await running.accepted()
        shown, second = await running.accepted(skip_special_tokens=False)
        bos = running.edge.model.encode("<s>")[0]
        ids = (97, bos, 98)
        await running.emit_ids((hidden, ids, finish(LENGTH, 3)), (shown, ids, finish(LENGTH, 3)))
        assert (first.text, second.text) == ("ab", "a<s>b")
        assert first.token_ids == second.token_ids == ids


# --- stop strings ----------------------------------------------------------------------------------------------------


async def test_stops_of_a_step_leave_as_one_message_c08() -> None:
    """Nothing of a stop is shown; what comes after is ignored; the end is merged with the host's."""
    async with engine() as running:
        one, first = await running.accepted(stop="green blue")
        two, second = await running.accepted(stop=["x", "!"])
        for piece in ("red ", "gre", "en b"):
            await running.emit((one, piece), (two, "."))
        await running.emit((one, "lue!"), (two, "a!b"))
        assert running.port.of(Stop) == [Stop(((one, 14, "green blue"), (two, 5, "!")))]
        await running.emit((one, "late"), (two, "late"))
        await running.emit((one, "", finish(STOP, 14, "green blue")), (two, "", finish(STOP, 5, "!")))
        assert (first.text, second.text) == ("red ", "...a")
        assert first.end.finish == finish(STOP, 14, "green blue") and len(first.token_ids) == 14
        assert second.end.finish == finish(STOP, 5, "!") and bytes(second.token_ids) == b"...a!"
        assert len(running.port.of(Stop)) == 1


@pytest.mark.parametrize("reason", [LENGTH, CANCELLED, DEADLINE, ERROR])
async def test_a_stop_string_beats_an_end_that_was_on_its_way(reason: FinishReason) -> None:
    failure = Failure("server_error", "x") if reason is ERROR else None
    async with engine() as running:
        rid, sink = await running.accepted(stop="#")
        await running.emit((rid, "a#b"))
        await running.emit((rid, "c", finish(reason, 4, failure=failure)))
        assert sink.text == "a" and sink.end.finish == finish(STOP, 2, "#") and bytes(sink.token_ids) == b"a#"


async def test_a_stop_string_in_the_last_row_needs_no_message() -> None:
    async with engine() as running:
        rid, sink = await running.accepted(stop="#")
        await running.emit((rid, "a#", finish(LENGTH, 2)))
        assert sink.text == "a" and sink.end.finish == finish(STOP, 2, "#") and running.port.of(Stop) == []


@pytest.mark.parametrize("reason", [LENGTH, CANCELLED, DEADLINE])
async def test_held_text_is_shown_when_the_end_proves_it_harmless(reason: FinishReason) -> None:
    async with engine() as running:
        rid, sink = await running.accepted(stop="END")
        await running.emit((rid, "the EN"))
        assert sink.text == "the "
        await running.emit((rid, "", finish(reason, 6)))
        assert (sink.text, sink.end.text, sink.end.finish.reason) == ("the EN", "EN", reason)
        assert len(sink.token_ids) == 6


async def test_the_text_of_the_id_that_ended_it_is_left_out_d09() -> None:
    """Also with special tokens shown, and what was held back before it comes out."""
    async with engine() as running:
        rid, sink = await running.accepted(stop="END", skip_special_tokens=False, stop_token_ids=[120])
        await running.emit((rid, "aE"))
        await running.emit((rid, "Nx", finish(STOP, 4, 120)))
        assert sink.text == "aEN" and bytes(sink.token_ids) == b"aENx" and sink.end.finish.usage.output == 4


async def test_min_tokens_holds_back_stop_strings_c09() -> None:
    async with engine() as running:
        rid, sink = await running.accepted(stop="#", min_tokens=4)
        await running.emit((rid, "a#b#"))
        assert running.port.of(Stop) == []
        await running.emit((rid, "c#d"))
        assert running.port.of(Stop) == [Stop(((rid, 6, "#"),))] and sink.text == "a#b#c"


# --- cancels, deadlines, pauses --------------------------------------------------------------------------------------


async def test_cancel_before_encoding_has_ended_is_kept_websocket_a5() -> None:
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            rid, sink = running.open("slow")
            running.edge.cancel(rid)
            running.edge.cancel(rid)
            assert sink.events == []  # not in the middle of the caller's own work
            await until(lambda: sink.ended)
            assert (sink.end.finish.reason, sink.end.finish.usage) == (CANCELLED, Usage(0, 0, 0))
            model.gate.set()
            quick, _ = running.open("a")
            await until(lambda: running.port.of(Submit))
            assert [submit.rid for submit in running.port.of(Submit)] == [quick]
            assert running.port.of(Cancel) == [] and len(sink.events) == 1


async def test_cancel_after_submit_waits_for_the_host() -> None:
    async with engine() as running:
        rid, sink = await running.accepted()
        running.edge.cancel(rid, DEADLINE)
        assert running.port.of(Cancel) == [Cancel(rid, DEADLINE)] and not sink.ended
        await running.emit((rid, "", finish(DEADLINE, 0)))
        running.edge.cancel(rid)
        assert sink.end.finish.reason is DEADLINE and len(running.port.of(Cancel)) == 1


async def test_deadline_passes_while_encoding() -> None:
    """The end comes at the deadline, not when the encoder is done; nothing is submitted."""
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            running.port.clock = 200.0
            sink = Sink()
            running.edge.open(parse({"prompt": "slow", "deadline_ms": 50}), sink, received=100.0)
            await until(lambda: sink.ended)
            assert sink.end.finish.reason is DEADLINE and not model.gate.is_set()
            model.gate.set()
            other = Sink()
            running.edge.open(parse({"prompt": "a", "deadline_ms": 10**6}), other, received=100.0)
            await until(lambda: running.port.of(Submit))
            assert [submit.deadline for submit in running.port.of(Submit)] == [1100.0]
            assert running.edge.num_live == 1


async def test_a_timer_that_fires_early_is_set_again() -> None:
    """Those of uvloop go by whole milliseconds."""
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            _, sink = running.open("slow", deadline_ms=5)
            await asyncio.sleep(0.02)  # by the loop's clock it has passed, by the engine's it has not
            assert not sink.ended
            running.port.clock += 0.005
            await until(lambda: sink.ended)
            assert sink.end.finish.reason is DEADLINE and not model.gate.is_set()


async def test_a_deadline_that_passed_during_encoding_is_seen_by_the_clock_alone() -> None:
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            _, sink = running.open("slow", deadline_ms=10**8)
            await until(lambda: model.texts)
            running.port.clock += 10**5
            model.gate.set()
            await until(lambda: sink.ended)
            assert sink.end.finish.reason is DEADLINE and running.port.of(Submit) == []


async def test_a_request_cancelled_in_the_queue_is_never_encoded() -> None:
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            for _ in range(ORDINARY_THREADS):
                running.open("slow")
            queued, sink = running.open("queued")
            await until(lambda: len(model.texts) == ORDINARY_THREADS)
            running.edge.cancel(queued)
            await until(lambda: sink.ended)
            model.gate.set()
            await until(lambda: len(running.port.of(Submit)) == ORDINARY_THREADS)
            await running.accepted("last")
            assert "queued" not in model.texts and "last" in model.texts


async def test_cancel_after_a_stop_string_changes_nothing() -> None:
    async with engine() as running:
        rid, sink = await running.accepted(stop="#")
        await running.emit((rid, "a#"))
        running.edge.cancel(rid)
        assert running.port.of(Cancel) == []
        await running.emit((rid, "", finish(STOP, 2, "#")))
        assert sink.end.finish.reason is STOP


async def test_pause_and_resume_name_live_requests_only() -> None:
    model = GatedModel()
    with opened(model.gate):
        async with engine(model) as running:
            rid, _ = await running.accepted("a")
            running.edge.pause([rid, "unknown"])
            running.edge.resume([rid])
            running.edge.resume(["unknown"])
            assert running.port.of(Pause) == [Pause((rid,))] and running.port.of(Resume) == [Resume((rid,))]
            late, _ = running.open("slow")
            running.edge.pause([late])  # not submitted yet: kept until it is
            assert len(running.port.of(Pause)) == 1
            model.gate.set()
            await until(lambda: len(running.port.of(Submit)) == 2)
            assert running.port.posted[-2:] == [running.port.of(Submit)[-1], Pause((late,))]
