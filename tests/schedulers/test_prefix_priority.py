"""Longest cached prefix first: what it gains, who is held back, and how often anybody may be passed."""

from __future__ import annotations

import random
from collections import Counter
from statistics import mean
from typing import Any

import pytest
from tests.schedulers.test_priority import starts
from tests.support import Lab, config, lab, submit

from mainspring.plugins.simulator import LinearStepTime

SYSTEM = tuple(range(100, 164))


def cached(num_blocks: int = 64, **scheduler: Any) -> Lab:
    return lab(config(4, "prefix", **{"use": "prefix_priority", "max_running": 1, **scheduler}), num_blocks)


def prompt(group: int, number: int, shared: int = 64) -> tuple[int, ...]:
    """A system prompt of ``shared`` tokens, then eight of its own."""
    return (*(200 + (group * 7 + i) % 97 for i in range(shared)), *(2 + (number * 8 + i) % 90 for i in range(8)))


def test_longest_cached_prefix_first() -> None:
    it = cached()
    it.sim.at(0.0, submit("warm", SYSTEM, 3))
    it.sim.at(
        0.5, submit("none", 40, 1), submit("half", (*SYSTEM[:32], 5, 6, 7), 1), submit("all", (*SYSTEM, 5, 6, 7), 1)
    )
    it.sim.run()
    assert starts(it) == ["warm", "all", "half", "none"]


A_A_B = (("a1", 5), ("a2", 5), ("b1", 90))


def test_sharers_of_a_prefix_in_progress_are_held_back() -> None:
    """Invariant 95: the second of a group waits until it can use what the first computes; others go meanwhile."""
    it = cached(200, max_running=4, token_budget=100)
    it.sim.at(0.0, submit("warm", prompt(1, 0), 1))
    it.sim.at(6.5, submit("warm2", prompt(1, 1), 1))
    it.sim.at(9.5, *(submit(rid, prompt(group, at, 160), 9) for at, (rid, group) in enumerate(A_A_B)))
    it.sim.run()
    assert it.batches()[2:6] == ["a1100", "a168* b132", "a11* b199", "a11* b137* a28*"]
    usage = {rid: finish.usage for rid, finish in it.ends().items()}
    assert usage["a1"].cached == usage["b1"].cached == 0
    assert usage["a2"].cached == 160


def test_without_a_prefix_cache_it_is_first_come_first_served() -> None:
    """Invariant 95."""
    plain, ordered = (lab(config(4, use=use, max_running=3)) for use in ("fcfs", "prefix_priority"))
    for it in (plain, ordered):
        for index in range(20):
            it.sim.at(index / 3, submit(f"r{index}", prompt(index % 3, index), 4))
        it.sim.run()
    assert plain.plans == ordered.plans


def passes_of(max_passes: int) -> int:
    """Later requests that start before a cold one, while hot requests never cease to wait."""
    it = cached(200, options={"max_passes": max_passes})
    it.sim.at(0.0, submit("warm", SYSTEM, 2), *(submit(f"w{index}", (*SYSTEM, 5, index + 2), 2) for index in range(5)))
    it.sim.at(4.5, submit("cold", tuple(range(300, 360)), 2))
    for index in range(60):
        it.sim.at(5.0 + 2 * index, submit(f"h{index}", (*SYSTEM, 6, index + 2), 2))
    it.sim.run()
    order = starts(it)
    return sum(rid.startswith("h") for rid in order[: order.index("cold")])


def test_a_cold_request_is_passed_a_stated_number_of_times() -> None:
    """A-12: exactly ``max_passes`` hot newcomers go before it, then it is the next."""
    assert passes_of(7) == 7
    assert passes_of(20) == 20
    assert passes_of(0) == 0


def zipf(use: str) -> tuple[float, float, int]:
    """(token hit rate, mean TTFT in seconds, most passes) with 16 system prompts and room for five of them."""
    rng = random.Random(7)
    settings = config(16, "prefix", use=use, max_running=8)
    it = lab(settings, (5 * 256 + 8 * 64) // 16, LinearStepTime(0.010, 0.0001))
    it.sim.config = type(settings)()  # books are checked elsewhere
    weights = [1 / rank for rank in range(1, 17)]
    moment = 0.0
    for index in range(160):
        moment += rng.expovariate(18.0)
        group = rng.choices(range(16), weights)[0]
        head = random.Random(group).choices(range(2, 1000), k=256)
        question = rng.choices(range(2, 1000), k=rng.randint(8, 24))
        it.sim.at(moment, submit(f"r{index}", (*head, *question), rng.randint(16, 48)))
    it.sim.run()
    ends = it.ends()
    assert it.host.stats()["policy_faults"] == 0
    hits = sum(one.usage.cached for one in ends.values()) / sum(one.usage.input for one in ends.values())
    ttft = mean((one.timing.first_token or 0.0) - one.timing.arrival for one in ends.values())
    passes: Counter[int] = Counter()
    order = [int(rid[1:]) for rid in dict.fromkeys(starts(it))]
    for at, number in enumerate(order):
        passes[number] = sum(earlier > number for earlier in order[:at])
    return hits, ttft, max(passes.values())


@pytest.mark.slow
def test_shared_prompts_are_found_more_often_and_sooner() -> None:
    """A mix of system prompts with Zipf popularity: more hits, less waiting, nobody passed more than 32 times."""
    hits, ttft, passes = zipf("prefix_priority")
    fcfs_hits, fcfs_ttft, _ = zipf("fcfs")
    assert hits > fcfs_hits + 0.02, (hits, fcfs_hits)
    assert ttft < 0.8 * fcfs_ttft, (ttft, fcfs_ttft)
    assert passes <= 32 + 16
