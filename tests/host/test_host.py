"""What the scheduler host promises whatever the policy: refusals, ends, memory pressure, pausing, swapping."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.support import Lab, config, lab, submit

from mainspring.core.config import SchedulerConfig
from mainspring.core.messages import (
    Cancel,
    Control,
    FinishReason,
    Note,
    Pause,
    Resume,
    SamplingParams,
    Stop,
    Swap,
)
from mainspring.plugins.testing.fake_executor import expected_ids


@pytest.mark.parametrize(
    ("bad", "code", "param", "words"),
    [
        (submit("bad", ()), "invalid_request", "prompt", "empty"),
        (submit("bad", (5, 1000)), "invalid_request", "token_ids", r"token_ids[1] = 1000 is not in 0..999"),
        (submit("bad", (1000, 5)), "invalid_request", "token_ids", r"token_ids[0] = 1000 is not in 0..999"),
        (submit("bad", (5, -1)), "invalid_request", "token_ids", r"token_ids[1] = -1"),
        (submit("bad", 3, max_tokens=0), "invalid_request", "max_tokens", "max_tokens = 0"),
        (submit("bad", 100), "context_length_exceeded", "prompt", "100 tokens; the context limit is 100"),
        (submit("bad", 80), "kv_capacity_exceeded", "prompt", "needs 21 KV blocks, the whole pool has 20"),
        (submit("bad", 3, deadline=0.0), "deadline_exceeded", "deadline_ms", "deadline"),
    ],
)
def test_refusals_disturb_nobody(bad: object, code: str, param: str, words: str) -> None:
    """A-01, A-15, D-04, D-05, D-11, invariants 19 and 66: refused at once, by name; the others go on."""
    it = lab(config(4), num_blocks=20, max_context=100)
    it.sim.at(0.0, bad, submit("good", 10, 5))  # type: ignore[arg-type]
    it.sim.run()
    failure = it.ends()["bad"].failure
    assert failure is not None
    assert (failure.code, failure.param) == (code, param)
    assert words in failure.message
    assert it.outputs()["good"] == expected_ids(tuple(range(10, 20)), 5)
    it.assert_empty()


def test_context_and_pool_end_by_length() -> None:
    """D-11: a prompt of limit - 1 gets one token; a generation that fills the pool ends by length."""
    it = lab(config(4), num_blocks=5, max_context=1000)
    it.sim.at(0.0, submit("A", 19, 500))
    it.sim.at(10.0, submit("B", 5, 500))
    it.sim.run()
    assert {rid: (end.reason, end.usage.output) for rid, end in it.ends().items()} == {
        "A": (FinishReason.LENGTH, 1),
        "B": (FinishReason.LENGTH, 15),
    }
    it.assert_empty()


def test_a_giant_does_not_block_the_queue() -> None:
    """A-01: refused by its own error while the next one runs."""
    it = lab(config(16), num_blocks=8, max_context=1024)
    it.sim.at(0.0, submit("giant", 200), submit("small", 10, 3))
    it.sim.run()
    assert it.ends()["giant"].failure.code == "kv_capacity_exceeded"  # type: ignore[union-attr]
    assert it.ends()["small"].usage.output == 3


def test_resumed_before_never_started() -> None:
    """A-03: the preempted request comes back first; its text equals the uninterrupted run."""
    it = lab(config(4, token_budget=64, max_running=2), num_blocks=10)
    it.sim.at(0.0, submit("A", 12, 20), submit("B", 12, 20))
    it.sim.at(2.5, submit("C", 4, 4), submit("D", 4, 4))
    it.sim.run()
    assert it.host.counters["preemptions"] >= 1
    order = [started.rid for plan in it.plans for started in plan.started]
    assert order.index("B", 2) < order.index("C") < order.index("D")
    assert it.outputs()["B"] == expected_ids(tuple(range(10, 22)), 20)


def test_preempted_resumes_only_when_its_context_fits() -> None:
    """A-02: few preemptions, and less than twice the least possible work."""
    it = lab(config(4, token_budget=8), num_blocks=12)
    it.sim.at(0.0, submit("A", 20, 12), submit("B", 20, 12))
    it.sim.run()
    computed = sum(row.count for plan in it.plans for row in plan.rows)
    assert max(end.num_preemptions for end in it.ends().values()) <= 2
    assert computed < 2 * 2 * (20 + 12 - 1)


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    """Invariant 10."""
    it = lab(config(4, token_budget=64), num_blocks=10)
    for index in range(5):
        it.sim.at(0.0, submit(f"r{index}", 9, 20))
    it.sim.run()
    assert any(plan.preempted for plan in it.plans)
    assert not any(plan.preempted and plan.started for plan in it.plans)


def test_a_large_request_is_passed_a_bounded_number_of_times() -> None:
    """A-13: small ones pass it while it does not fit, at most max_bypass of them; then it gets its turn."""
    it = lab(config(4, token_budget=64, max_bypass=3), num_blocks=20)
    it.sim.at(0.0, submit("running", 36, 30))  # holds half the pool for 30 steps
    it.sim.at(1.5, submit("large", 60, 2))
    for index in range(12):
        it.sim.at(2.5 + 2 * index, submit(f"small{index}", 3, 2))
    it.sim.run()
    order = [started.rid for plan in it.plans for started in plan.started]
    before = [rid for rid in order[: order.index("large")] if rid.startswith("small")]
    assert len(before) == 3
    assert len(it.ends()) == 14


def test_pause_takes_out_one_request_only() -> None:
    it = lab(config(16))
    it.sim.at(0.0, submit("A", 4, 10), submit("B", 4, 10))
    it.sim.at(2.5, Pause(("A",)))
    it.sim.at(8.5, Resume(("A",)))
    it.sim.run()
    rows = [[row.rid for row in plan.rows] for plan in it.plans if plan.rows]
    assert rows[3:8] == [["B"]] * 5
    assert it.outputs()["A"] == it.outputs()["B"] == expected_ids((10, 11, 12, 13), 10)


def held(it: Lab, rid: str) -> int:
    return it.sim.actors.allocator.held_blocks(rid)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_that_stays_paused_gives_its_blocks_to_the_others(depth: Literal[1, 2]) -> None:
    """A client that does not read keeps its request, not its memory; the text is the same in the end."""
    it = lab(config(4, pause_hold_s=3.0, depth=depth), num_blocks=8)
    it.sim.at(0.0, submit("A", 8, 10))
    it.sim.at(2.5, Pause(("A",)))
    it.sim.run(until=5.4)
    assert held(it, "A") >= 3
    it.sim.run(until=6.6)
    assert held(it, "A") == 0
    it.sim.at(7.0, submit("B", 24, 4))  # needs all but one block
    it.sim.run(until=10.0)
    assert held(it, "B") == 7
    it.sim.at(10.5, Resume(("A",)))
    it.sim.run()
    assert it.outputs()["A"] == expected_ids(tuple(range(10, 18)), 10)
    assert it.host.counters["paused_too_long"] == 1
    it.assert_empty()


def test_a_pause_that_ends_in_time_costs_nothing() -> None:
    """The patience of an earlier pause is not that of a later one."""
    it = lab(config(4, pause_hold_s=3.0))
    it.sim.at(0.0, submit("A", 8, 20))
    for moment in (2.5, 4.5):  # the first pause would run out at 5.5
        it.sim.at(moment, Pause(("A",)))
    it.sim.at(4.0, Resume(("A",)))
    it.sim.at(6.5, Resume(("A",)))
    it.sim.run()
    assert it.host.counters["preemptions"] == 0
    assert it.outputs()["A"] == expected_ids(tuple(range(10, 18)), 20)


def test_hold_and_release_admission() -> None:
    """Invariant 17: nothing new is admitted while held, the running ones continue."""
    it = lab(config(16))
    it.sim.at(0.0, submit("A", 4, 10))
    it.sim.at(1.5, Control("hold"), submit("B", 4, 3))
    it.sim.at(5.5, Control("release"))
    it.sim.run()
    first = next(plan.step for plan in it.plans if any(row.rid == "B" for row in plan.rows))
    assert first == 7
    assert len(it.ends()) == 2


def test_drain_refuses_newcomers() -> None:
    it = lab()
    it.sim.at(0.0, submit("A", 4, 5))
    it.sim.at(1.5, Control("drain"), submit("B", 4, 5))
    it.sim.run()
    assert it.ends()["A"].reason is FinishReason.LENGTH
    assert it.ends()["B"].failure.code == "draining"  # type: ignore[union-attr]


def test_queue_limit() -> None:
    it = lab(config(max_waiting=2, max_running=1))
    it.sim.at(0.0, *(submit(f"r{index}", 4, 5) for index in range(4)))
    it.sim.run()
    refused = [rid for rid, end in it.ends().items() if end.failure and end.failure.code == "queue_full"]
    assert refused == ["r2", "r3"]


def test_deadline_while_running_and_while_waiting() -> None:
    it = lab(config(max_running=1))
    it.sim.at(0.0, submit("A", 4, 100, deadline=5.5), submit("B", 4, 100, deadline=3.5), submit("C", 4, 2))
    it.sim.run()
    ends = it.ends()
    assert (ends["A"].reason, ends["A"].usage.output) == (FinishReason.DEADLINE, 6)
    assert (ends["B"].reason, ends["B"].usage.output) == (FinishReason.DEADLINE, 0)
    assert ends["C"].reason is FinishReason.LENGTH
    it.assert_empty()


@pytest.mark.parametrize("depth", [1, 2])
def test_stop_string_cuts_what_came_after(depth: int) -> None:
    it = lab(config(depth=depth))
    it.sim.at(0.0, submit("A", 4, 50))
    it.sim.at(5.5, Stop((("A", 3, "END"),)))
    it.sim.run()
    end = it.ends()["A"]
    assert (end.reason, end.stop, end.usage.output) == (FinishReason.STOP, "END", 3)
    it.assert_empty()


@pytest.mark.parametrize(
    ("sampling", "outputs", "stop"),
    [
        (SamplingParams(max_tokens=9), 3, None),
        (SamplingParams(max_tokens=9, ignore_eos=True), 9, None),
        (SamplingParams(max_tokens=9, stop_token_ids=(7,)), 2, 7),
        (SamplingParams(max_tokens=9, min_tokens=3), 5, None),
        (SamplingParams(max_tokens=9, min_tokens=3, stop_token_ids=(7,)), 5, None),
        (SamplingParams(max_tokens=4, min_tokens=9), 4, None),
    ],
)
def test_ends_by_token(sampling: SamplingParams, outputs: int, stop: int | None) -> None:
    """C-09, C-10, C-11, D-10, invariants 103 and 104: 5 7 0 5 1 ...: ids 0 and 1 end, 7 is a stop id."""
    script = [5, 7, 0, 5, 1, 5, 5, 5, 5]
    it = lab(script=lambda rid, at, checksum: script[at - 4], end_token_ids=(0, 1))
    it.sim.at(0.0, submit("A", 4, sampling=sampling))
    it.sim.run()
    end = it.ends()["A"]
    assert (end.usage.output, end.stop) == (outputs, stop)
    length = outputs == sampling.max_tokens
    assert end.reason is (FinishReason.LENGTH if length else FinishReason.STOP)


def test_forced_length_is_seen_by_the_finish_check_only() -> None:
    it = lab(script=lambda rid, at, checksum: 0)
    it.sim.at(0.0, submit("A", 4, 100, forced_length=7))
    it.sim.run()
    assert it.ends()["A"].usage.output == 7
    with pytest.raises(AttributeError):
        it.host.planner.guard.policy.context.forced_length  # type: ignore[attr-defined]  # noqa: B018


def test_failed_row_ends_one_request() -> None:
    """C-15, invariant 109: a row that cannot be sampled ends its own request, with its id."""
    from mainspring.core.messages import StepLaunch, StepResult

    it = lab()
    execute = it.executor.execute

    def failing(launch: StepLaunch, sample: object) -> StepResult:
        result = execute(launch, sample)  # type: ignore[arg-type]
        return StepResult(result.step, result.rids, result.token_ids, (("A", "no finite logit"),))

    it.executor.execute = failing  # type: ignore[method-assign]
    it.sim.at(0.0, submit("A", 4, 5), submit("B", 4, 5))
    it.sim.run()
    failure = it.ends()["A"].failure
    assert failure is not None
    assert failure.code == "server_error"
    assert "A" in failure.message
    assert "no finite logit" in failure.message
    assert it.ends()["B"].reason is FinishReason.LENGTH
    it.assert_empty()


def test_cancel_of_unknown_and_ended_is_ignored() -> None:
    """Invariant 115."""
    it = lab()
    it.sim.at(0.0, Cancel("nobody"), submit("A", 4, 2))
    it.sim.at(9.0, Cancel("A"))
    it.sim.run()
    assert it.ends()["A"].reason is FinishReason.LENGTH


def test_swap_keeps_requests_and_rolls_back_on_failure() -> None:
    """Invariant 131: the first plan after the swap uses the new limits; a failed swap changes nothing."""
    it = lab(config(token_budget=8))
    it.sim.at(0.0, submit("A", 30, 10))
    it.sim.at(1.5, Swap(SchedulerConfig(token_budget=4)))
    it.sim.at(3.5, Swap(SchedulerConfig(use="no_such_policy")))
    it.sim.run()
    notes = [message for message in it.log if isinstance(message, Note)]
    assert [note.point for note in notes] == ["scheduler.swapped", "scheduler.swap_failed"]
    assert "no_such_policy" in notes[1].facts["error"]
    assert it.batches()[:4] == ["A8", "A8", "A4", "A4"]
    assert it.outputs()["A"] == expected_ids(tuple(range(10, 40)), 10)
