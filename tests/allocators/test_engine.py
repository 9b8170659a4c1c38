"""The whole engine on every allocator: random traffic with shared prefixes on tiny pools, one and two steps in flight.

The fake executor's next id is a checksum of the context read back through the block table, so a wrong block anywhere
changes a text; ``expected_ids`` is what an undisturbed request gets.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from tests.support import Lab, config, lab

from mainspring.allocators.sharing.eviction import KEYS
from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.messages import Cancel, Pause, Resume, SamplingParams, Submit
from mainspring.plugins.testing.fake_executor import expected_ids

ALLOCATORS = ("paged", "prefix", "radix", "contiguous", "none")
CONTEXT = 200


def traffic(allocator: str, seed: int, **options: Any) -> tuple[Lab, dict[str, Submit]]:
    """A lab with 25 random requests of three families, some cancelled, some paused for a while; ``options`` are the
    allocator's."""
    rng = Random(seed)
    block_size, num_blocks = rng.choice((1, 4, 16)), rng.choice((6, 10, 20, 60))
    settings = Config(
        paranoid=True,
        scheduler=SchedulerConfig(
            token_budget=rng.choice((1, 8, 33, 512)),
            depth=rng.choice((1, 2)),
            max_running=rng.choice((2, 8, 256)),
            watermark=rng.choice((0, 0.1)),
        ),
        allocator=AllocatorConfig(
            use=allocator,
            block_size=block_size,
            evict=rng.choice(sorted(KEYS)),
            max_idle_s=rng.choice((0.0, 0.0, 5.0)),
            options=options,
        ),
    )
    it = lab(settings, num_blocks, max_context=CONTEXT, num_host_blocks=options.get("host_blocks", 0))
    bases = [tuple(rng.randrange(2, 1000) for _ in range(100)) for _ in range(3)]
    submits = {}
    for number in range(25):
        length = rng.randint(1, min(100, num_blocks * block_size + 3))
        shared = rng.randint(0, length)
        prompt = rng.choice(bases)[:shared] + tuple(rng.randrange(2, 1000) for _ in range(length - shared))
        rid, at = f"r{number}", rng.choice((rng.uniform(0, 60), float(rng.randint(0, 20))))
        submits[rid] = Submit(
            rid,
            prompt,
            SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=True),
            cache_salt=rng.choice(("", "", "x")),
            read_cache=rng.random() < 0.8,
        )
        it.sim.at(at, submits[rid])
        if rng.random() < 0.2:
            it.sim.at(at + rng.uniform(0, 30), Cancel(rid))
        if rng.random() < 0.1:
            it.sim.at(at + rng.uniform(0, 30), Pause((rid,)))
            it.sim.at(at + rng.uniform(30, 60), Resume((rid,)))
    return it, submits


def play(allocator: str, seed: int) -> Counter[str]:
    """Run it and check everything; returns what happened."""
    it, submits = traffic(allocator, seed)
    it.sim.run(max_events=20_000)
    outputs, ends = it.outputs(), it.ends()
    assert ends.keys() == submits.keys()
    seen: Counter[str] = Counter()
    pool = it.sim.actors.allocator.num_blocks * it.sim.actors.allocator.block_size
    for rid, submit in submits.items():
        end, prompt = ends[rid], submit.prompt_ids
        assert outputs[rid] == expected_ids(prompt, len(outputs[rid])), rid
        if end.reason == "length":
            most = min(submit.sampling.max_tokens, CONTEXT - len(prompt), pool - len(prompt))
            assert len(outputs[rid]) == most, rid
        assert end.usage.cached < len(prompt)
        seen[f"ended by {end.reason}"] += 1
        seen["cached"] += end.usage.cached
    it.assert_empty()
    assert it.host.counters["denied"] == 0, "the draft allowed what the allocator denied"
    seen.update({name: int(value) for name, value in it.sim.actors.allocator.stats().items()})
    seen["preemptions"] += it.host.counters["preemptions"]
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_outputs_are_those_of_undisturbed_requests(allocator: str) -> None:
    """B-06, B-08, B-09, A-10, C55: and nothing is ever denied, and nothing is left at the end."""
    seen = sum((play(allocator, seed) for seed in range(8)), Counter[str]())
    assert seen["ended by length"] > 50
    if allocator in ("prefix", "radix"):
        assert min(seen[name] for name in ("cached", "evictions", "expirations", "preemptions")) > 0, seen


@pytest.mark.soak
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_outputs_are_those_of_undisturbed_requests_for_long(allocator: str) -> None:
    for seed in range(1000, 1300):
        play(allocator, seed)


def submit(rid: str, prompt: tuple[int, ...], max_tokens: int = 4, **fields: Any) -> Submit:
    return Submit(rid, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields)


def ids(count: int, first: int = 100) -> tuple[int, ...]:
    return tuple(range(first, first + count))


@pytest.mark.parametrize("allocator", ["prefix", "radix"])
@pytest.mark.parametrize("depth", [1, 2])
def test_cached_prompt_tokens_are_reported(allocator: str, depth: int) -> None:
    """E76, E77, B-02: twins in one step, the next turn of a conversation, another salt, an opt-out."""
    it = lab(config(block_size=16, allocator=allocator, depth=depth))
    answer = expected_ids(ids(100), 40)
    it.sim.at(0.0, submit("a", ids(100), 40), submit("b", ids(100)))
    it.sim.at(100.0, submit("turn", (*ids(100), *answer, 7, 8, 9)))
    it.sim.at(200.0, submit("salted", ids(100), cache_salt="x"), submit("out", ids(100), read_cache=False))
    it.sim.run()
    cached = {rid: end.usage.cached for rid, end in it.ends().items()}
    assert cached == {"a": 0, "b": 96, "turn": 128, "salted": 0, "out": 0}
    for rid, tokens in it.outputs().items():
        prompt = next(plan for plan in it.plans for start in plan.started if start.rid == rid).started
        known = next(start.token_ids for start in prompt if start.rid == rid)
        assert tokens == expected_ids(known, len(tokens))


@pytest.mark.parametrize("allocator", ["prefix", "radix"])
def test_a10_many_requests_with_one_prefix_on_a_small_pool(allocator: str) -> None:
    """A-10: 64 requests with a common prefix preempt each other and resume; outputs are as if each were alone."""
    it = lab(config(block_size=4, allocator=allocator, token_budget=64), num_blocks=40)
    for number in range(64):
        it.sim.at(number / 4, submit(f"r{number}", ids(24) + ids(number % 5 + 1, 1000 // 2 + number), 20))
    it.sim.run()
    for rid, tokens in it.outputs().items():
        number = int(rid[1:])
        assert tokens == expected_ids(ids(24) + ids(number % 5 + 1, 500 + number), 20)
    assert it.host.counters["preemptions"] > 0
    assert it.host.counters["denied"] == 0
    assert it.sim.actors.allocator.stats()["resumed_hit_tokens"] > 0
    it.assert_empty()


@pytest.mark.parametrize("allocator", ["paged", "prefix", "radix", "contiguous"])
def test_d66_a_prompt_that_never_fits_is_refused_at_once(allocator: str) -> None:
    """D66: even if its first chunk fits and even if a part of it is cached."""
    it = lab(config(block_size=4, allocator=allocator, token_budget=8), num_blocks=4)
    it.sim.at(0.0, submit("fits", ids(12), 4))
    it.sim.at(50.0, submit("never", ids(17), 4))
    it.sim.run()
    failure = it.ends()["never"].failure
    assert failure is not None
    assert failure.code == "kv_capacity_exceeded"
    it.assert_empty()


@pytest.mark.parametrize("allocator", ["paged", "prefix", "radix"])
def test_d67_admission_keeps_the_watermark_free(allocator: str) -> None:
    """D67: with w = 0.25 of 16 blocks a newcomer may not take the last four while something runs; growth may."""
    it = lab(config(block_size=4, allocator=allocator, watermark=0.25, token_budget=64), num_blocks=16)
    it.sim.at(0.0, submit("a", ids(31), 30))
    it.sim.at(2.0, submit("b", ids(19, 500), 4))
    it.sim.run()
    lowest = {"b": 16, "a": 16}
    for grant in it.grants:
        used = {block for row in grant.rows for block in row.block_table}
        for row in grant.rows:
            lowest[row.rid] = min(lowest[row.rid], 16 - len(used))
    assert min(lowest.values()) < 5  # "a" grew into it
    starts = {start.rid: plan.step for plan in it.plans for start in plan.started}
    assert starts["b"] > 2  # and "b" had to wait until "a" was gone or small enough
    it.assert_empty()
