"""Wrappers change one thing about any policy and leave the rest to it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.schedulers.test_priority import preempted, starts
from tests.support import Lab, config, lab, submit

from mainspring.core.config import SchedulerConfig
from mainspring.core.messages import Control, Pause, Resume
from mainspring.core.policy import PolicyContext, SchedulerPolicy
from mainspring.core.registry import Registry
from mainspring.schedulers.host.build import make_policy

AGEING = {"use": "ageing", "max_wait_s": 20.0}


def stream(use: str, options: dict[str, Any], wrap: tuple[Any, ...], **limits: Any) -> Lab:
    """Short urgent requests without end through one slot, and one long unimportant one at 0.5 s."""
    it = lab(config(max_running=1, use=use, options=options, wrap=wrap, **limits), num_blocks=100)
    it.sim.at(0.0, submit("s", 2, 2, priority=0, deadline=900.0))
    it.sim.at(0.5, submit("cold", 40, 2, priority=9))
    for index in range(100):
        it.sim.at(0.6 + 2 * index, submit(f"s{index}", 2, 2, priority=0, deadline=900.0 + index))
    it.sim.run(until=180.0)
    return it


@pytest.mark.parametrize(
    ("use", "options"),
    [
        ("priority", {}),
        ("deadline", {}),
        ("shortest", {}),
        ("shortest", {"mode": "remaining"}),
        ("mlfq", {"quantum": 8}),
    ],
)
def test_ageing_bounds_the_wait(use: str, options: dict[str, Any]) -> None:
    """Invariant 124: never served without, and within ``max_wait_s`` plus two steps with."""
    assert "cold" not in starts(stream(use, options, ()))
    it = stream(use, options, (AGEING,))
    scheduled = it.ends()["cold"].timing.scheduled
    assert scheduled is not None and scheduled - 0.5 <= 20.0 + 2.0
    assert it.host.stats()["policy_faults"] == 0


@pytest.mark.parametrize("use", ["fcfs", "priority", "fair", "token_budget", "prefix_priority"])
def test_ageing_makes_room(use: str) -> None:
    """A slot held by an endless generation is free at ``max_wait_s`` plus one step; both take turns from then on."""
    it = lab(config(max_running=1, use=use, wrap=(AGEING,)), num_blocks=100)
    it.sim.at(0.0, submit("hog", 2, 150))
    it.sim.at(0.5, submit("late", 2, 3))
    it.sim.run()
    scheduled = it.ends()["late"].timing.scheduled
    assert scheduled is not None and scheduled - 0.5 <= 20.0 + 1.0
    assert preempted(it) == ["hog"]


def test_ageing_without_preemption_waits_for_room() -> None:
    it = lab(config(max_running=1, wrap=({**AGEING, "preempt": False},)), num_blocks=100)
    it.sim.at(0.0, submit("hog", 2, 50))
    it.sim.at(0.5, submit("late", 2, 3))
    it.sim.run()
    assert not preempted(it)
    assert it.ends()["late"].timing.scheduled == 50.0


def test_ageing_leaves_the_order_alone_while_nobody_is_overdue() -> None:
    plain, aged = (
        lab(config(max_running=2, use="priority", wrap=wrap), num_blocks=100)
        for wrap in ((), ({**AGEING, "max_wait_s": 1e6},))
    )
    for it in (plain, aged):
        it.sim.at(0.0, *(submit(f"r{index}", 3, 5, priority=index * 7 % 5) for index in range(20)))
        it.sim.run()
    assert plain.plans == aged.plans


@pytest.mark.parametrize("use", ["static_batch", "dynamic_batch"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("outer", [(), ("tenant_share",)])
def test_ageing_ends_a_group_for_who_has_waited_too_long(use: str, depth: int, outer: tuple[str, ...]) -> None:
    """Invariant 124 for policies that plan whole steps: the group would run for 150 s, and comes back for its turn."""
    it = lab(config(use=use, depth=depth, wrap=(*outer, AGEING)), num_blocks=200)
    it.sim.at(0.0, *(submit(f"hog{index}", 2, 150) for index in range(3)))
    it.sim.at(5.0, submit("late", 2, 3))
    it.sim.run()
    scheduled = it.ends()["late"].timing.scheduled
    assert scheduled is not None and 20.0 <= scheduled - 5.0 <= 20.0 + depth
    assert preempted(it) == ["hog0", "hog1", "hog2"]
    assert all(len(ids) == (3 if rid == "late" else 150) for rid, ids in it.outputs().items())
    assert it.host.stats()["policy_faults"] == 0
    it.assert_empty()


@pytest.mark.parametrize("use", ["static_batch", "dynamic_batch"])
def test_ageing_lets_a_group_run_while_it_need_not_end(use: str) -> None:
    """Not without ``preempt``, and not for somebody who is paused or while admission is held."""
    for wrap, hold, pause in (
        ({**AGEING, "preempt": False}, False, False),
        (AGEING, True, False),
        (AGEING, False, True),
    ):
        it = lab(config(use=use, wrap=(wrap,)), num_blocks=200)
        it.sim.at(0.0, *(submit(f"hog{index}", 2, 60) for index in range(3)))
        it.sim.at(5.0, submit("late", 2, 3))
        it.sim.at(6.0, *([Control("hold")] if hold else []), *([Pause(("late",))] if pause else []))
        it.sim.at(90.0, Control("release"), Resume(("late",)))
        it.sim.run()
        assert not preempted(it)
        assert len(it.ends()) == 4


@pytest.mark.parametrize("use", ["static_batch", "dynamic_batch"])
def test_tenant_share_chooses_the_group(use: str) -> None:
    """A flood that came first takes three of four places; the polite one is in the first group."""
    share = {"use": "tenant_share", "shares": {"flood": 0.75}}
    it = lab(config(max_running=4, use=use, options={"max_batch": 4}, wrap=(share,)), num_blocks=200)
    it.sim.at(
        0.0, *(submit(f"f{index}", 2, 5, tenant="flood") for index in range(6)), submit("p", 2, 5, tenant="polite")
    )
    it.sim.run()
    assert it.batches()[0] == "f02* f12* f22* p2*"
    assert it.host.stats()["policy_faults"] == 0


@pytest.mark.parametrize(
    ("outer", "inner", "group"), [("ageing", "tenant_share", "f3 f4"), ("tenant_share", "ageing", "f3 p")]
)
def test_the_outermost_wrapper_orders_whole_steps(outer: str, inner: str, group: str) -> None:
    """Two places, one for each tenant; two of the flood have waited too long, the polite one has not."""
    options: dict[str, dict[str, Any]] = {"ageing": {"max_wait_s": 30.0}, "tenant_share": {}}
    wrap = tuple({"use": name, **options[name]} for name in (outer, inner))
    it = lab(config(max_running=2, use="static_batch", options={"max_batch": 2}, wrap=wrap), num_blocks=200)
    it.sim.at(0.0, *(submit(f"f{index}", 2, 40, tenant="flood") for index in (1, 2)))
    it.sim.at(1.0, *(submit(f"f{index}", 2, 5, tenant="flood") for index in (3, 4)))
    it.sim.at(30.0, submit("p", 2, 5, tenant="polite"))
    it.sim.run()
    started = list(starts(it))
    assert " ".join(started[2:4]) == group


def test_tenant_share_keeps_slots_for_others() -> None:
    """One tenant floods four slots; the other always finds one, and gets all of them when it is alone."""
    it = lab(config(max_running=4, wrap=({"use": "tenant_share", "shares": {"flood": 0.75}},)), num_blocks=200)
    flood = [submit(f"f{index}", 2, 10, tenant="flood") for index in range(12)]
    it.sim.at(0.0, *flood, submit("p", 2, 10, tenant="polite"))
    it.sim.run()
    assert it.batches()[0] == "f02* f12* f22* p2*"
    alone = lab(config(max_running=4, wrap=({"use": "tenant_share", "shares": {"flood": 0.25}},)), num_blocks=200)
    alone.sim.at(0.0, *(submit(f"f{index}", 2, 10, tenant="flood") for index in range(4)))
    alone.sim.run()
    assert alone.batches()[0] == "f02* f12* f22* f32*"


def test_wrappers_cost_nothing_where_they_say_nothing() -> None:
    """A hook that the wrapper does not override is the inner policy's own method, or the kernel's default."""
    config = SchedulerConfig(use="priority", wrap=(AGEING, "tenant_share"))
    policy: Any = make_policy(Registry().make, config, PolicyContext(8, 1, 8, 4))
    inner = policy.inner.inner
    assert policy.waiting_key == inner.waiting_key
    assert policy.split_budget == inner.split_budget
    assert policy.bucket.__func__ is SchedulerPolicy.bucket
    assert "priority_order" in inner.claims and "priority_order" not in policy.claims
