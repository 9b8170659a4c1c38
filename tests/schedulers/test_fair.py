"""Fair shares by tenant, in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support import config, lab, submit

from mainspring.core.messages import StepPlan
from mainspring.core.policy import PolicyContext
from mainspring.plugins.simulator import LinearStepTime
from mainspring.schedulers.fair import Fair, Options

LENGTH, POOL_TOKENS = 64, 2048


def service_gaps(seconds: float, **scheduler: Any) -> list[float]:
    """The gap in service (input + 2 x output tokens) over time of two clients that ask for more than there is, one
    of them twice as often; sampled at every step after the first tenth."""
    it = lab(config(16, token_budget=512, **scheduler), POOL_TOKENS // 16, LinearStepTime(0.030, 0.0001))
    for tenant, rate in (("slow", 6.0), ("fast", 12.0)):
        for index in range(int(rate * seconds)):
            it.sim.at(index / rate, submit(f"{tenant}{index}", LENGTH, LENGTH, tenant=tenant))
    service: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    gaps: list[float] = []

    def count(message: Any, now: float) -> None:
        if isinstance(message, StepPlan):
            for row in message.rows:
                prompt = max(0, min(row.start + row.count, LENGTH) - seen[row.rid])
                seen[row.rid] += prompt  # computing it again after a preemption is no service
                service[row.rid[:4]] += prompt + 2 * row.samples
            gaps.append(abs(service["slow"] - service["fast"]) if now > seconds / 10 else 0)

    it.sim.router._taps = (count,)
    it.sim.config = type(it.sim.config)()  # books are checked elsewhere
    it.sim.run(until=seconds)
    assert it.host.stats()["policy_faults"] == 0
    return gaps


def test_gap_stays_bounded_where_fcfs_lets_it_grow() -> None:
    """Invariant 121: at most 2 x max(input weight x longest input, output weight x tokens of a full batch)."""
    fair, fcfs = service_gaps(40.0, use="fair"), service_gaps(40.0, use="fcfs")
    assert max(fair) < 2 * max(LENGTH, 2 * POOL_TOKENS)
    assert max(fair[len(fair) // 2 :]) <= 1.5 * max(fair[: len(fair) // 2])
    assert fcfs[-1] > 3 * max(fair)
    assert fcfs[-1] > 1.7 * fcfs[len(fcfs) // 2] > 0


def test_weights_divide_the_service() -> None:
    it = lab(config(max_running=1, use="fair", options={"weights": {"big": 3.0}}))
    for index in range(8):
        it.sim.at(0.0, submit(f"a{index}", 4, 4, tenant="small"), submit(f"b{index}", 4, 4, tenant="big"))
    it.sim.run(until=4 * 8.5)
    started = Counter(started.rid[0] for plan in it.plans for started in plan.started)
    assert started == {"a": 2, "b": 7} or started == {"a": 3, "b": 6}


def returning(lift: bool) -> str:
    """Tenant ``a`` works alone for long, then ``b`` comes and both are busy: who is served, through one slot."""
    it = lab(config(max_running=1, use="fair", options={"lift": lift}))
    it.sim.at(0.0, *(submit(f"a{index}", 4, 4, tenant="a") for index in range(20)))
    it.sim.at(30.5, *(submit(f"b{index}", 4, 4, tenant="b") for index in range(6)))
    it.sim.run(until=30.0 + 4 * 6)
    return "".join(started.rid[0] for plan in it.plans for started in plan.started)[8:]


def test_coming_back_from_idle_earns_no_credit() -> None:
    """With the lift they take turns; least-counter-first serves the newcomer alone until it has caught up."""
    assert returning(lift=True) in ("babab", "ababa", "babaab", "bababa", "ababab")
    assert returning(lift=False).startswith("bbbbb")


def test_tenants_that_came_once_are_forgotten() -> None:
    it = lab(config(use="fair"))
    for index in range(500):
        it.sim.at(3.0 * index, submit(f"r{index}", 2, 2, tenant=f"t{index}"), submit(f"q{index}", 2, 2, tenant="old"))
    it.sim.run()
    policy = it.host.planner.guard.policy
    assert isinstance(policy, Fair)
    assert len(policy.export_state()["counters"]) < 100


def test_counters_survive_a_swap() -> None:
    old, new = (Fair(Options(), PolicyContext(8, 1, 8, 4)) for _ in range(2))
    old._counters, old._level = {"a": 5.0, "b": 7.0}, 5.0
    new.import_state("fair", old.export_state())
    assert new.bucket_key("b", 2, 0.0) == 9.0
    new.import_state("fcfs", {})
    assert new.bucket_key("a", 0, 0.0) == 5.0
