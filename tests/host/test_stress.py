"""Random traffic on tiny pools: whatever happens, the text is right, the books balance, everyone ends once."""

from __future__ import annotations

import random

import pytest
from tests.support import config, disturb, lab, submit

from mainspring.core.messages import Cancel, FinishReason, SamplingParams
from mainspring.plugins.testing.fake_executor import expected_ids

MAX_CONTEXT = 200


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_random_traffic(seed: int, depth: int) -> None:
    """A-05, A-07, B-06, invariants 1, 2, 41, 55: budgets, preemption, cancels and pauses never show in the text."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.choice([6, 10, 20, 60]), rng.choice([1, 4, 16])
    settings = config(
        block_size,
        token_budget=rng.choice([1, 8, 33, 512]),
        max_running=rng.choice([2, 8, 256]),
        watermark=rng.choice([0.0, 0.1]),
        depth=depth,
    )
    it = lab(settings, num_blocks, max_context=MAX_CONTEXT)
    asked: dict[str, tuple[tuple[int, ...], int]] = {}
    for index in range(25):
        length = rng.randint(1, min(100, num_blocks * block_size + 3))
        prompt, tokens = tuple(rng.randrange(2, 1000) for _ in range(length)), rng.randint(1, 40)
        rid, moment = f"r{index}", rng.uniform(0, 60)
        asked[rid] = prompt, tokens
        it.sim.at(moment, submit(rid, prompt, tokens))
        disturb(it, rng, rid, moment, early_s=30, late_s=60, pauses=0.1)
    it.sim.run(max_events=20_000)
    ends, outputs = it.ends(), it.outputs()
    assert ends.keys() == asked.keys()
    for rid, (prompt, tokens) in asked.items():
        assert outputs[rid] == expected_ids(prompt, len(outputs[rid]))
        assert ends[rid].usage.output == len(outputs[rid])
        if ends[rid].reason is FinishReason.LENGTH:
            pool = num_blocks * block_size
            assert len(outputs[rid]) == min(tokens, MAX_CONTEXT - len(prompt), pool - len(prompt))
    for plan in it.plans:
        assert sum(row.count for row in plan.rows) <= settings.scheduler.token_budget
        assert len({row.rid for row in plan.rows}) == len(plan.rows)
        assert all(row.count >= 1 for row in plan.rows)
    assert it.host.counters["denied"] == 0
    assert it.host.stats()["policy_faults"] == 0
    it.assert_empty()


def test_preemption_happens_in_the_stress() -> None:
    """Guards the test above: pools that small do preempt."""
    it = lab(config(4, token_budget=33), num_blocks=10)
    for index in range(6):
        it.sim.at(0.0, submit(f"r{index}", tuple(range(index + 2, index + 12)), 20))
    it.sim.run()
    assert it.host.counters["preemptions"] > 0
    for index in range(6):
        assert it.outputs()[f"r{index}"] == expected_ids(tuple(range(index + 2, index + 12)), 20)
    it.assert_empty()


@pytest.mark.parametrize("depth", [1, 2])
def test_prompt_lengths_around_a_chunk(depth: int) -> None:
    """A-06: all pairs of lengths around the budget, concurrently; no step over budget."""
    lengths = (1, 31, 32, 33, 63, 64, 65, 96)
    for first in lengths:
        for second in lengths:
            it = lab(config(16, token_budget=32, depth=depth))
            it.sim.at(0.0, submit("A", first, 6), submit("B", second, 6))
            it.sim.run()
            for rid, length in (("A", first), ("B", second)):
                assert it.outputs()[rid] == expected_ids(tuple(range(10, 10 + length)), 6)
            assert max(sum(row.count for row in plan.rows) for plan in it.plans) <= 32


@pytest.mark.parametrize("depth", [1, 2])
def test_thousand_cancels(depth: int) -> None:
    """A-07: 1,000 requests cancelled at random instants, many of them inside a step."""
    rng = random.Random(7)
    it = lab(config(16, token_budget=64, depth=depth, max_waiting=2000), num_blocks=40)
    for index in range(1000):
        moment = rng.uniform(0, 400)
        it.sim.at(moment, submit(f"r{index}", rng.randint(1, 60), rng.randint(1, 30)))
        it.sim.at(moment + rng.expovariate(1 / 5), Cancel(f"r{index}"))
    it.sim.run()
    ends = it.ends()
    assert len(ends) == 1000
    assert {end.reason for end in ends.values()} == {FinishReason.CANCELLED, FinishReason.LENGTH}
    it.assert_empty()


def test_nothing_stays_of_short_requests() -> None:
    """A-08: one-token requests leave no trace."""
    it = lab(config(16, max_waiting=5000), step_time=lambda launch: 0.001)
    for index in range(3000):
        it.sim.at(index * 0.01, submit(f"r{index}", 3, 1, deadline=1e6))
    it.sim.run()
    assert len(it.ends()) == 3000
    assert len(it.host._deadlines) < 200
    it.assert_empty()


@pytest.mark.parametrize("depth", [1, 2])
def test_no_token_is_computed_twice_without_preemption(depth: int) -> None:
    """Invariant 46: a request that ends by length is never over-scheduled: prompt + max_tokens - 1 in all."""
    it = lab(config(16, token_budget=7, depth=depth))
    it.sim.at(0.0, submit("A", 10, 5), submit("B", 3, 9))
    it.sim.run()
    counts = {rid: sum(row.count for plan in it.plans for row in plan.rows if row.rid == rid) for rid in "AB"}
    assert counts == {"A": 14, "B": 11}
    assert it.host.counters["wasted_tokens"] == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_end_ids_found_late_are_cut(depth: int) -> None:
    """House 3.4: an end found one step late drops the extra token and counts it."""
    script = {("A", 12): 0}  # the third output token is the end id
    it = lab(config(16, depth=depth), script=lambda rid, at, checksum: script.get((rid, at), 5))
    it.sim.at(0.0, submit("A", 10, sampling=SamplingParams(max_tokens=50)))
    it.sim.run()
    assert it.outputs()["A"] == [5, 5, 0]
    assert it.ends()["A"].reason is FinishReason.STOP
    assert it.host.counters["wasted_tokens"] == (1 if depth == 2 else 0)
    it.assert_empty()
