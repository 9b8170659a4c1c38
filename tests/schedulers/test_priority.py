"""Classes: who is served, who is displaced, and what never happens between equals."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import Lab, config, lab, submit

from mainspring.plugins.testing.fake_executor import expected_ids


def starts(it: Lab) -> list[str]:
    """Rids in the order in which they entered the running set."""
    return [started.rid for plan in it.plans for started in plan.started]


def preempted(it: Lab) -> list[str]:
    return [rid for plan in it.plans for rid in plan.preempted]


def urgent(**options: Any) -> dict[str, Any]:
    return {"use": "priority", "options": options}


@pytest.mark.parametrize("lower_first", [True, False])
def test_the_sign_is_one_fact(lower_first: bool) -> None:
    """Invariants 22 and 24: eight classes through one slot come out in order, not in heap order."""
    it = lab(config(max_running=1, **urgent(lower_first=lower_first)))
    it.sim.at(0.0, *(submit(f"p{p}", 2, 1, priority=p) for p in (5, 1, 8, 3, 2, 7, 4, 6)))
    it.sim.run()
    order = [f"p{p}" for p in range(1, 9)]
    assert starts(it) == (order if lower_first else order[::-1])


def test_equals_are_served_by_arrival() -> None:
    """Invariant 23."""
    it = lab(config(max_running=1, **urgent()))
    it.sim.at(0.0, *(submit(rid, 2, 1, priority=3) for rid in "CABD"))
    it.sim.run()
    assert starts(it) == list("CABD")


def test_urgent_takes_a_slot() -> None:
    """A-04: both slots run long generations; the urgent request has its first token before either finishes."""
    it = lab(config(max_running=2, **urgent()))
    it.sim.at(0.0, submit("A", 4, 30, priority=5), submit("B", 4, 30, priority=5))
    it.sim.at(5.5, submit("U", 4, 3, priority=0))
    it.sim.run()
    assert preempted(it) == ["B"]
    assert it.ends()["U"].timing.first_token == 7.0
    assert it.outputs()["B"] == expected_ids(tuple(range(10, 14)), 30)


def test_equal_priority_never_evicts() -> None:
    """A-04, invariant 30."""
    it = lab(config(max_running=2, **urgent()))
    it.sim.at(0.0, submit("A", 4, 30, priority=5), submit("B", 4, 30, priority=5))
    it.sim.at(5.5, submit("U", 4, 3, priority=5))
    it.sim.run()
    assert not preempted(it)


def test_the_threshold_must_be_passed() -> None:
    for priority, displaced in ((3, []), (2, ["A"])):
        it = lab(config(max_running=1, **urgent(threshold=2)))
        it.sim.at(0.0, submit("A", 4, 10, priority=5))
        it.sim.at(2.5, submit("U", 4, 3, priority=priority))
        it.sim.run()
        assert preempted(it) == displaced, priority


def test_no_preemption_while_there_is_room() -> None:
    """Invariant 26."""
    it = lab(config(max_running=3, **urgent()))
    it.sim.at(0.0, submit("A", 4, 10, priority=5), submit("B", 4, 10, priority=5))
    it.sim.at(2.5, submit("U", 4, 3, priority=0))
    it.sim.run()
    assert not preempted(it)


def test_low_class_makes_way_for_blocks_of_a_running_request() -> None:
    """Invariant 25: the low class is preempted, though it was admitted first; the high one continues."""
    it = lab(config(16, **urgent()), num_blocks=5)
    it.sim.at(0.0, submit("low", 33, 20, priority=5), submit("high", 31, 20, priority=1))
    it.sim.run()
    assert preempted(it) == ["low"]
    assert it.outputs()["low"] == expected_ids(tuple(range(10, 43)), 20)


def test_victims_all_or_nothing() -> None:
    """Invariant 32: no more victims than needed, and nobody is touched if all of them would not do."""
    it = lab(config(4, **urgent()), num_blocks=10)
    it.sim.at(0.0, submit("eq", 7, 20, priority=1))
    it.sim.at(1.5, submit("a", 7, 20, priority=5))
    it.sim.at(2.5, submit("b", 7, 20, priority=5))
    it.sim.at(3.5, submit("giant", 35, 2, priority=1))
    it.sim.run(until=6.0)
    assert not preempted(it)
    it = lab(config(4, **urgent()), num_blocks=10)
    it.sim.at(0.0, submit("a", 7, 20, priority=5), submit("b", 7, 20, priority=5), submit("c", 7, 20, priority=5))
    it.sim.at(1.5, submit("big", 16, 2, priority=1))
    it.sim.run(until=2.5)
    assert preempted(it) == ["c"]


def test_nobody_is_displaced_for_ever() -> None:
    """Invariant 37: a stream of urgent requests displaces a low one at most ``max_preemptions`` times."""
    it = lab(config(max_running=1, **urgent(max_preemptions=2)))
    it.sim.at(0.0, submit("low", 4, 40, priority=9))
    for index in range(30):
        it.sim.at(2.5 + 4 * index, submit(f"u{index}", 4, 2, priority=0))
    it.sim.run()
    assert preempted(it) == ["low", "low"]
    assert it.ends()["low"].timing.finished < it.ends()["u29"].timing.finished  # type: ignore[operator]


def test_preempted_comes_back_before_its_equals() -> None:
    """A-03."""
    it = lab(config(max_running=1, **urgent()))
    it.sim.at(0.0, submit("A", 4, 10, priority=5))
    it.sim.at(1.5, submit("B", 4, 2, priority=5), submit("C", 4, 2, priority=5))
    it.sim.at(3.5, submit("U", 4, 2, priority=0))
    it.sim.run()
    assert starts(it) == ["A", "U", "A", "B", "C"]
