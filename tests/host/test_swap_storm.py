"""Swapping among all policies under random load: no token is lost or repeated, every request ends exactly once."""

from __future__ import annotations

import random
from itertools import cycle

import pytest
from tests.support import config, lab, submit

from mainspring.core.config import SchedulerConfig
from mainspring.core.messages import Cancel, FinishReason, Message, Note, StepPlan, Swap
from mainspring.core.registry import Registry
from mainspring.plugins.testing.fake_executor import expected_ids

POLICIES = [info.name for info in Registry().available("scheduler")]
EVERY = 50


@pytest.mark.parametrize(("depth", "allocator"), [(1, "paged"), (2, "paged"), (1, "prefix"), (2, "prefix")])
def test_swap_storm(depth: int, allocator: str) -> None:
    """Invariant 131, over 5,000 steps."""
    rng = random.Random(depth)
    limits = {"token_budget": 48, "max_running": 12, "depth": depth, "max_waiting": 4000}
    it = lab(config(4, allocator, **limits), num_blocks=60)
    names = cycle(POLICIES)

    def swap_now_and_then(message: Message, now: float) -> None:
        if isinstance(message, StepPlan) and message.rows and message.step % EVERY == 0:
            it.sim.at(now, Swap(SchedulerConfig(use=next(names), **limits)))  # type: ignore[arg-type]

    it.sim.router._taps = (*it.sim.router._taps, swap_now_and_then)
    asked: dict[str, tuple[tuple[int, ...], int]] = {}
    moment, shared = 0.0, tuple(rng.randrange(2, 1000) for _ in range(24))
    for index in range(1600):
        moment += rng.expovariate(1 / 3.0)
        own = tuple(rng.randrange(2, 1000) for _ in range(rng.randint(1, 40)))
        prompt, tokens = (shared[: rng.choice([0, 8, 24])] + own), rng.randint(1, 30)
        tenant = rng.choice(["a", "b", "c"])
        asked[f"r{index}"] = prompt, tokens
        deadline = moment + 4000 if rng.random() < 0.3 else None
        it.sim.at(
            moment,
            submit(f"r{index}", prompt, tokens, tenant=tenant, priority=rng.randint(0, 3), deadline=deadline),
        )
        if rng.random() < 0.1:
            it.sim.at(moment + rng.uniform(0, 40), Cancel(f"r{index}"))
    it.sim.run(max_events=60_000)
    swaps = [message for message in it.log if isinstance(message, Note)]
    assert {note.point for note in swaps} == {"scheduler.swapped"}
    assert len({note.facts["new"] for note in swaps}) == len(POLICIES)
    assert it.host.step > 4500
    ends, outputs = it.ends(), it.outputs()
    assert ends.keys() == asked.keys()
    for rid, (prompt, tokens) in asked.items():
        assert outputs[rid] == expected_ids(prompt, len(outputs[rid])), rid
        if ends[rid].reason is FinishReason.LENGTH:
            assert len(outputs[rid]) == tokens
    assert it.host.stats()["policy_faults"] == 0
    assert it.host.counters["denied"] == 0
    it.assert_empty()
