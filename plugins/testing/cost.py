"""What one decision costs: measured without the kit in between, reported and never judged."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from .runs import Player, Subject
from .scenarios import Scenario, burst, submit

_RUNNING, _WAITING, _STEPS = 64, 1000, 60


class Cost(NamedTuple):
    """Microseconds of a decision with so many requests running and waiting."""

    num_running: int
    num_waiting: int
    p50_us: float
    p99_us: float

    def __str__(self) -> str:
        return (
            f"one decision with {self.num_running} running and {self.num_waiting} waiting: "
            f"p50 {self.p50_us:.0f} us, p99 {self.p99_us:.0f} us"
        )


def decision_cost(subject: Subject) -> Cost:
    """Time ``plan`` of a busy engine, on this machine, now."""
    requests = burst(submit(f"r{at}", 8, 100, seed=at % 7, tenant="abcd"[at % 4]) for at in range(_RUNNING + _WAITING))
    scenario = Scenario("busy", requests, 512, _RUNNING, num_blocks=20_000, max_context=4096)
    player = Player(subject, scenario, recorded=False)
    host: Any = player.simulator.actors.host
    plan, spent = host.planner.plan, list[int]()

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter_ns()
        decision = plan(*arguments)
        spent.append(time.perf_counter_ns() - started)
        return decision

    host.planner.plan = timed
    player.simulator.config = type(player.simulator.config)()  # the books are checked elsewhere: here it costs time
    player.simulator.run(max_events=len(requests) + _STEPS)
    steady = sorted(spent[3:]) or [0]
    return Cost(
        host.num_running, host.num_waiting, steady[len(steady) // 2] / 1e3, steady[int(len(steady) * 0.99)] / 1e3
    )
