"""``mainspring story`` tells all eight steps and six points from what the journal really writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring.core.__main__ import main
from mainspring.core.messages import (
    Cancel,
    Emit,
    EmitRow,
    Finish,
    FinishReason,
    GrantedRow,
    Message,
    Note,
    Row,
    SamplingParams,
    Started,
    StepGrant,
    StepLaunch,
    StepPlan,
    StepResult,
    Stop,
    Submit,
    Timing,
    Usage,
)
from mainspring.plugins.folders import state_folder
from mainspring.plugins.journal import Journal
from mainspring.plugins.story import observe, tell

RID, SECRET = "r1", 4711


def step(number: int, start: int, count: int, at: float, num_blocks: int) -> list[tuple[float, Message]]:
    """The messages of one step with one row, times as the router would stamp them."""
    ids = (SECRET,) * count
    row = Row(RID, start, count, ids if number == 0 else None, samples=True)
    granted = GrantedRow(RID, start, count, row.token_ids, True, tuple(range(num_blocks)), tuple(range(count)))
    started = (Started(RID, ids, count, 4, SamplingParams()),) if number == 0 else ()
    return [
        (at, StepPlan(number, (row,), started, reasons=(("r2", "no room"),))),
        (at, StepGrant(number, (granted,), started)),
        (at, StepLaunch(number, (granted,), None)),
        (at + 0.010, StepResult(number, (RID,), (SECRET,), launched=at + 0.001, finished=at + 0.009)),
    ]


def life(num_steps: int) -> list[tuple[float, Message]]:
    """A request of 8 prompt tokens that ends by a stop string."""
    out: list[tuple[float, Message]] = [
        (100.002, Submit(RID, (SECRET,) * 8, tenant="team-a", received=100.000)),
        (100.002, Emit(-1, (EmitRow(RID),))),
        (100.002, StepPlan(-1, (), reasons=((RID, "waiting its turn"),))),
    ]
    for number in range(num_steps):
        at = 100.010 + number * 0.020
        out += step(number, 0 if number == 0 else 7 + number, 8 if number == 0 else 1, at, 1 + number // 16)
        out.append((at + 0.010, Emit(number, (EmitRow(RID, (SECRET,)), EmitRow("r2", (1,))))))
    end = 100.010 + num_steps * 0.020
    timing = Timing(100.002, 100.010, 100.020, end)
    finish = Finish(FinishReason.STOP, Usage(8, 4, num_steps), timing, stop="END")
    return [
        *out,
        (end, Note(RID, "text_in", {"truncated": False})),
        (end, Stop(((RID, num_steps, "END"),))),
        (end, Emit(-1, (EmitRow(RID, (), finish),))),
        (end, StepPlan(num_steps, (), released=(RID,))),
    ]


def write(messages: list[tuple[float, Message]], folder: Path) -> None:
    journal = Journal(8, folder)
    for moment, message in messages:
        journal.record(message, moment)
    journal.close()


@pytest.fixture
def journal() -> Path:
    folder = state_folder() / "journal"
    write(life(40), folder)
    return folder


def entries(messages: list[tuple[float, Message]]) -> list[dict[str, object]]:
    journal = Journal(len(messages))
    for moment, message in messages:
        journal.record(message, moment)
    # Through JSON, as from a file.
    found: list[dict[str, object]] = json.loads(json.dumps(journal.story(RID), default=_plain))
    return found


def _plain(value: object) -> object:
    return {name: getattr(value, name) for name in value.__struct_fields__}  # type: ignore[attr-defined]


def test_all_eight_steps_in_order_of_time(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", RID, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {line["number"] for line in told["story"]} - {0} == set(range(1, 9))
    seconds = [line["seconds"] for line in told["story"]]
    assert seconds[0] == 0
    assert seconds == sorted(seconds)
    first = [line["number"] for line in told["story"] if line["seconds"] <= 0.020 + 1e-9 and line["number"]]
    assert first == [1, 2, 8, 3, 3, 4, 5, 6, 6, 7, 8]


def test_six_points_observe(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", RID, "--json"]) == 0
    observed = json.loads(capsys.readouterr().out)["observed"]
    assert observed["gateway"]["tenant"] == "team-a"
    assert observed["gateway"]["queued_s"] == pytest.approx(0.002)
    assert observed["text_in"] == {"num_prompt_tokens": 8, "truncated": False}
    assert observed["scheduler"]["waited_s"] == pytest.approx(0.008)
    assert observed["scheduler"]["num_steps"] == 40
    assert observed["scheduler"]["left_out"] == ["waiting its turn"]
    assert observed["kv"] == {"max_blocks": 3, "num_cached_tokens": 4, "num_denied": 0}
    assert observed["model"]["busy_s"] == pytest.approx(40 * 0.008)
    assert observed["text_out"]["num_output_tokens"] == 40
    assert observed["text_out"]["first_token_s"] == pytest.approx(0.018)
    assert observed["text_out"]["finish"] == "stop"


def test_the_table_is_shortened_unless_all_is_asked_for(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", RID]) == 0
    short = capsys.readouterr().out
    assert "more steps" in short
    assert "ended: stop" in short
    assert "'END' after 40 tokens" in short
    assert "r2" not in short
    assert main(["story", RID, "--all"]) == 0
    full = capsys.readouterr().out
    assert "more steps" not in full
    assert len(full.splitlines()) > len(short.splitlines()) + 100


def test_no_token_id_is_shown(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", RID, "--all"]) == 0
    assert str(SECRET) not in capsys.readouterr().out


def test_an_unknown_request_is_said_to_be_unknown(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", "r99"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "'r99'" in captured.err
    assert str(journal) in captured.err


def test_no_journal_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["story", RID, "--set", 'journal.path=""']) == 1
    assert "journal.path" in capsys.readouterr().err


def test_another_folder_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(life(2), tmp_path / "elsewhere")
    assert main(["story", RID, "--journal", str(tmp_path / "elsewhere")]) == 0
    assert "team-a" in capsys.readouterr().out


def test_a_cancelled_request_that_never_ran() -> None:
    messages: list[tuple[float, Message]] = [
        (1.0, Submit(RID, (1, 2))),
        (1.0, Emit(-1, (EmitRow(RID),))),
        (2.0, Cancel(RID)),
        (2.0, Emit(-1, (EmitRow(RID, (), Finish(FinishReason.CANCELLED, Usage(2, 0, 0), Timing(1.0, finished=2.0))),))),
    ]
    told = entries(messages)
    assert [line.what for line in tell(told, RID)][-2:] == ["Cancel: cancelled", "Emit: 0 tokens, ended: cancelled"]
    observed = observe(told, RID)
    assert observed["gateway"]["cancelled"] == "cancelled"
    assert observed["scheduler"]["waited_s"] is None
    assert observed["text_out"]["first_token_s"] is None


def test_a_preempted_and_failed_request() -> None:
    messages = [
        *life(1)[:-4],
        (101.0, StepPlan(1, (), preempted=(RID,))),
        (101.0, StepResult(1, (RID,), (0,), failed=((RID, "NaN in the logits"),), launched=100.9, finished=101.0)),
    ]
    told = entries(messages)
    observed = observe(told, RID)
    assert observed["scheduler"]["num_preemptions"] == 1
    assert observed["model"]["failed"] == ["NaN in the logits"]
    assert any("NaN in the logits" in line.what for line in tell(told, RID))


def test_nothing_known_is_an_empty_story() -> None:
    assert tell([], RID) == []
