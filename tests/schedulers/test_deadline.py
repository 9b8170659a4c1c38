"""Deadlines first, everything else behind."""

from __future__ import annotations

import pytest
from tests.schedulers.test_priority import preempted, starts
from tests.support import config, lab, submit


@pytest.mark.parametrize("order", ["earliest", "slack"])
def test_earliest_first_and_batch_work_behind(order: str) -> None:
    it = lab(config(max_running=1, use="deadline", options={"order": order}))
    it.sim.at(0.0, submit("batch", 4, 2), *(submit(f"d{at}", 4, 2, deadline=float(at)) for at in (50, 20, 90, 30)))
    it.sim.run()
    assert starts(it) == ["d20", "d30", "d50", "d90", "batch"]


def test_slack_counts_what_is_still_to_do() -> None:
    """The later deadline is the more urgent one if much more is left to do."""
    for order, first in (("earliest", "short"), ("slack", "long")):
        it = lab(config(max_running=1, use="deadline", options={"order": order}))
        it.sim.at(0.0, submit("warm", 4, 3, deadline=500.0))
        it.sim.at(1.5, submit("short", 4, 2, deadline=60.0), submit("long", 4, 40, deadline=70.0))
        it.sim.run()
        assert starts(it)[1] == first


def test_batch_work_fills_and_makes_way() -> None:
    """Work without a deadline uses the idle slots, and is displaced when a deadline needs one; never the reverse."""
    it = lab(config(max_running=2, use="deadline"))
    it.sim.at(0.0, submit("b1", 4, 30), submit("b2", 4, 30))
    it.sim.at(3.5, submit("d1", 4, 3, deadline=20.0))
    it.sim.run()
    assert preempted(it) == ["b2"]
    assert it.ends()["d1"].timing.first_token == 5.0
    it = lab(config(max_running=1, use="deadline"))
    it.sim.at(0.0, submit("d1", 4, 10, deadline=90.0))
    it.sim.at(3.5, submit("d2", 4, 3, deadline=30.0), submit("b", 4, 3))
    it.sim.run()
    assert not preempted(it)
    assert starts(it) == ["d1", "d2", "b"]
