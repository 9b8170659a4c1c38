"""Every policy, option and wrapper under random traffic on tiny pools: nothing of it ever shows in the text."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support import Lab, config, lab, submit

from mainspring.core.config import SchedulerConfig
from mainspring.core.messages import Cancel, FinishReason, Note, Pause, Resume, Swap
from mainspring.core.registry import Registry
from mainspring.plugins.testing.fake_executor import expected_ids

AGEING: dict[str, Any] = {"use": "ageing", "max_wait_s": 6.0}
CASES: list[tuple[str, dict[str, Any], tuple[Any, ...]]] = [
    ("fcfs", {"victims": "least_computed"}, ()),
    ("fcfs", {"victims": "most_computed"}, ()),
    ("fcfs", {"victims": "random"}, ()),
    ("fcfs", {"victims": "lowest_priority"}, ()),
    ("fcfs", {"victims": "longest_remaining"}, ()),
    ("fcfs", {"admission": "final", "admit_every": 3}, ()),
    ("fcfs", {"admission": "peak"}, ()),
    ("fair", {"admission": "final", "output_estimate": "average"}, (AGEING,)),
    ("token_budget", {}, ()),
    ("token_budget", {"prefill_interval": 4, "long_prefill_cap": 5}, ()),
    ("prefix_priority", {"max_passes": 3}, ()),
    ("priority", {}, ()),
    ("priority", {"lower_first": False, "threshold": 1, "victims": "least_computed"}, ()),
    ("fair", {}, ()),
    ("fair", {"lift": False, "weights": {"a": 2.0}}, ()),
    ("deadline", {}, ()),
    ("deadline", {"order": "slack"}, ()),
    ("shortest", {}, ()),
    ("shortest", {"mode": "remaining"}, ()),
    ("shortest", {"mode": "hrrn"}, ()),
    ("mlfq", {"quantum": 4}, ()),
    ("static_batch", {"max_batch": 3}, ()),
    ("dynamic_batch", {"max_batch": 4, "max_wait_s": 3.0}, ()),
    ("priority", {}, (AGEING,)),
    ("fair", {}, (AGEING, "tenant_share")),
    ("shortest", {"mode": "remaining"}, ("tenant_share", AGEING)),
    ("static_batch", {}, (AGEING,)),
    ("dynamic_batch", {"max_batch": 4}, (AGEING, "tenant_share")),
]


def play(use: str, options: dict[str, Any], wrap: tuple[Any, ...], depth: int, seed: int) -> Lab:
    """Random arrivals, cancels, pauses, tenants, priorities and deadlines; everything that must hold is checked."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.choice([6, 10, 20, 60]), rng.choice([1, 4, 16])
    limits: dict[str, Any] = {"token_budget": rng.choice([1, 8, 33, 512]), "max_running": rng.choice([2, 8, 256])}
    it = lab(
        config(block_size, use=use, options=options, wrap=wrap, depth=depth, **limits), num_blocks, max_context=200
    )
    prompts: dict[str, tuple[int, ...]] = {}
    for index in range(25):
        length = rng.randint(1, min(100, num_blocks * block_size + 3))
        rid, moment = f"r{index}", rng.uniform(0, 60)
        prompts[rid] = tuple(rng.randrange(2, 1000) for _ in range(length))
        deadline = moment + rng.uniform(20, 300) if rng.random() < 0.3 else None
        facts = {"priority": rng.randint(0, 3), "tenant": rng.choice("abc"), "deadline": deadline}
        it.sim.at(moment, submit(rid, prompts[rid], rng.randint(1, 40), **facts))
        if rng.random() < 0.2:
            it.sim.at(moment + rng.uniform(0, 30), Cancel(rid))
        if rng.random() < 0.1:
            it.sim.at(moment + rng.uniform(0, 30), Pause((rid,)))
            it.sim.at(moment + rng.uniform(30, 60), Resume((rid,)))
    it.sim.run(max_events=20_000)
    ends, outputs = it.ends(), it.outputs()
    assert ends.keys() == prompts.keys()
    for rid, prompt in prompts.items():
        assert outputs[rid] == expected_ids(prompt, len(outputs[rid])), rid
    assert it.host.counters["denied"] == 0
    assert it.host.stats()["policy_faults"] == 0
    it.assert_empty()
    return it


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("use", "options", "wrap"), CASES)
def test_random_traffic(use: str, options: dict[str, Any], wrap: tuple[Any, ...], depth: int) -> None:
    """A-05, A-07, invariants 1, 36, 55, 124: all end once, with the text of an undisturbed run, and no fault."""
    for seed in (depth, depth + 10):
        play(use, options, wrap, depth, seed)


def swap_among_all(num_steps: int, every: int, depth: int, seed: int = 3) -> None:
    """Random load with cancels and a pool under pressure, while policy, wrappers and options keep changing."""
    rng = random.Random(seed)
    limits: dict[str, Any] = {"token_budget": 64, "max_running": 12, "depth": depth}
    it = lab(config(4, **limits), 80)
    prompts: dict[str, tuple[int, ...]] = {}
    for index in range(num_steps // 4):
        rid, moment = f"r{index}", 4 * index + rng.random()
        prompts[rid] = tuple(rng.randrange(2, 1000) for _ in range(rng.randint(1, 60)))
        facts = {"priority": rng.randint(0, 3), "tenant": rng.choice("abc")}
        it.sim.at(moment, submit(rid, prompts[rid], rng.randint(1, 60), **facts))
        if rng.random() < 0.1:
            it.sim.at(moment + rng.uniform(0, 60), Cancel(rid))
    for moment in range(every, num_steps, every):
        use, options, wrap = rng.choice(CASES)
        it.sim.at(float(moment), Swap(SchedulerConfig(use=use, options=options, wrap=wrap, **limits)))
    it.sim.run(max_events=10 * num_steps)
    points = [message.point for message in it.log if isinstance(message, Note)]
    assert points == ["scheduler.swapped"] * ((num_steps - 1) // every)
    ends, outputs = it.ends(), it.outputs()
    assert ends.keys() == prompts.keys()
    for rid, prompt in prompts.items():
        assert outputs[rid] == expected_ids(prompt, len(outputs[rid])), rid
    assert it.host.counters["preemptions"] > 0
    assert it.host.stats()["policy_faults"] == 0
    it.assert_empty()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_swapping_among_all_policies(depth: int) -> None:
    """Invariant 131: no token lost or repeated, blocks conserved, everyone ends once."""
    swap_among_all(600, 10, depth)


@pytest.mark.soak
def test_swapping_among_all_policies_for_long() -> None:
    """The same for 5,000 steps, every 50."""
    swap_among_all(5000, 50, 2)


def test_the_traffic_has_pressure_and_both_ends() -> None:
    its = [play("priority", {}, (), 1, seed) for seed in range(6)]
    assert sum(it.host.counters["preemptions"] for it in its) > 10
    reasons = {finish.reason for it in its for finish in it.ends().values()}
    assert {FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.DEADLINE} <= reasons


@pytest.mark.parametrize("use", sorted({use for use, _, _ in CASES}))
def test_a_run_repeats_exactly(use: str) -> None:
    """Invariant 21: same inputs, same seed, same plans."""
    first, second = (play(use, {}, (), 2, 3) for _ in range(2))
    assert first.plans == second.plans


def test_every_policy_in_the_folder_is_tried() -> None:
    registry = Registry()
    named = {use for use, _, _ in CASES}
    assert {info.name for info in registry.available("scheduler") if info.origin == "mainspring"} == named
    wrappers = {one if isinstance(one, str) else one["use"] for _, _, wrap in CASES for one in wrap}
    assert {info.name for info in registry.available("wrapper") if info.origin == "mainspring"} == wrappers
