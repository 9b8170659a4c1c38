"""The two baselines: fixed groups with padding, and groups collected in a window."""

from __future__ import annotations

from typing import Any

import pytest
from tests.schedulers.test_priority import starts
from tests.support import config, lab, submit

from mainspring.core.messages import Alarm, Cancel, Pause, Resume
from mainspring.plugins.simulator import LinearStepTime


def static(max_batch: int, **limits: int) -> dict[str, Any]:
    return {"use": "static_batch", "options": {"max_batch": max_batch}, **limits}


def test_static_group_waits_for_its_longest() -> None:
    """The jobs that continuous batching packs into five steps take seven in fixed groups of two."""
    it = lab(config(**static(2)))
    it.sim.at(0.0, *(submit(rid, 1, steps) for rid, steps in zip("ABCD", (2, 4, 3, 1), strict=True)))
    it.sim.run()
    assert it.batches() == ["A1* B1*", "A1* B1*", "B1*", "B1*", "C1* D1*", "C1*", "C1*"]
    assert [plan.padding for plan in it.plans if plan.rows] == [(), (), (1,), (1,), (), (1,), (1,)]


def test_static_prompts_are_padded_to_the_longest() -> None:
    it = lab(config(**static(3)))
    it.sim.at(0.0, submit("A", 9, 1), submit("B", 2, 1), submit("C", 5, 1))
    it.sim.run()
    assert [plan.padding for plan in it.plans if plan.rows] == [(7, 4)]


def test_padding_costs_time_and_counts_against_nothing() -> None:
    """Dummy rows take no budget (two of nine tokens fit 11) and are charged by the step time."""
    it = lab(config(**static(2, token_budget=11)), 64, LinearStepTime(1.0, 0.1))
    it.sim.at(0.0, submit("A", 9, 1), submit("B", 2, 1))
    it.sim.run()
    assert it.batches() == ["A9* B2*"]
    assert abs(it.ends()["A"].timing.finished - (1.0 + 0.1 * 18)) < 1e-9  # type: ignore[operator]


def test_static_group_larger_than_the_budget_starts_in_pieces() -> None:
    it = lab(config(**static(3, token_budget=8)))
    it.sim.at(0.0, submit("A", 6, 2), submit("B", 6, 2), submit("C", 3, 2))
    it.sim.run()
    assert it.batches() == ["A6* B2", "B4* C3*", "A1* B1* C1*"]
    assert [plan.padding for plan in it.plans if plan.rows] == [(), (3,), ()]


def test_static_group_reserves_its_final_lengths() -> None:
    """Nobody is preempted: the third does not fit beside the final lengths of the first two."""
    it = lab(config(4, **static(8)), num_blocks=10)
    it.sim.at(0.0, *(submit(rid, 4, 12) for rid in "ABC"))
    it.sim.run()
    assert it.host.counters["preemptions"] == 0
    assert it.batches()[0] == "A4* B4*"


def test_cancelled_member_becomes_padding() -> None:
    it = lab(config(**static(2)))
    it.sim.at(0.0, submit("A", 1, 5), submit("B", 1, 5), submit("C", 1, 1))
    it.sim.at(1.5, Cancel("A"))
    it.sim.run()
    assert it.batches() == ["A1* B1*", "A1* B1*", "B1*", "B1*", "B1*", "C1*"]
    assert starts(it) == ["A", "B", "C"]


def test_dynamic_window_closes_when_its_time_is_over() -> None:
    it = lab(config(use="dynamic_batch", options={"max_batch": 4, "max_wait_s": 5.0}))
    it.sim.at(0.0, submit("A", 1, 3))
    it.sim.at(2.0, submit("B", 1, 1))
    it.sim.at(6.5, submit("C", 1, 1))
    it.sim.run()
    assert it.batches() == ["A1* B1*", "A1*", "A1*", "C1*"]
    assert it.ends()["A"].timing.scheduled == 5.0
    assert it.ends()["C"].timing.scheduled == 11.5
    assert any(isinstance(message, Alarm) and message.at == 5.0 for message in it.log)
    assert all(not plan.padding for plan in it.plans)


def test_dynamic_window_closes_when_it_is_full() -> None:
    for options in ({"max_batch": 2}, {"max_tokens": 6}):
        it = lab(config(use="dynamic_batch", options={"max_wait_s": 5.0, **options}))
        it.sim.at(0.0, submit("A", 3, 1))
        it.sim.at(1.0, submit("B", 3, 1), submit("C", 3, 1))
        it.sim.run()
        assert it.batches() == ["A3* B3*", "C3*"], options
        assert it.ends()["A"].timing.scheduled == 1.0
        assert it.ends()["C"].timing.scheduled == 6.0


@pytest.mark.parametrize("use", ["static_batch", "dynamic_batch"])
def test_a_paused_group_does_not_hold_up_the_next(use: str) -> None:
    it = lab(config(use=use))
    it.sim.at(0.0, submit("A", 1, 4))
    it.sim.at(1.5, Pause(("A",)), submit("B", 1, 2))
    it.sim.at(20.0, Resume(("A",)))
    it.sim.run()
    assert it.ends()["B"].timing.finished < 10.0  # type: ignore[operator]
    assert it.ends()["A"].usage.output == 4
    assert it.host.stats()["policy_faults"] == 0
