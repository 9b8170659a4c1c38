"""Preemption by swap: what a victim has computed waits in host blocks and comes back instead of being recomputed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from tests.allocators.driver import Driver, make_context
from tests.allocators.test_engine import CONTEXT, ids, submit, traffic
from tests.support import Lab, lab

from mainspring.allocators.prefix import PrefixAllocator
from mainspring.allocators.sharing.swap import SharingOptions
from mainspring.core.config import AllocatorConfig, Config, ExecutorConfig, SchedulerConfig
from mainspring.core.errors import ConfigError
from mainspring.core.messages import Cancel, GrantedRow, SamplingParams, StepGrant, StepPlan, StepResult, Submit
from mainspring.plugins import settings
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.testing.fake_executor import expected_ids

CACHING = ("prefix", "radix")


def drive(host_blocks: int = 8, num_blocks: int = 8, depth: int = 1) -> Driver:
    return Driver(PrefixAllocator(SharingOptions("swap", host_blocks), make_context(num_blocks, 4)), depth)


def swap(driver: Driver, rid: str) -> StepGrant:
    """Preempt ``rid`` for another request that then takes and overwrites the whole pool, and ends."""
    driver.preempt(rid)
    driver.submit("bully", ids(driver.allocator.num_blocks * 4 - 1, 500), max_tokens=1)
    grant = driver.run("bully")
    driver.finish("bully")
    return grant


def figures(driver: Driver) -> tuple[float, ...]:
    """Blocks swapped, requests out, requests in."""
    stats = driver.allocator.stats()
    return tuple(stats[name] for name in ("swapped_blocks", "swap_outs", "swap_ins"))


# --- single promises -------------------------------------------------------------------------------------------------


def test_a_victim_comes_back_with_all_it_had_computed() -> None:
    """Ten tokens in three blocks go out; eleven are known at the return, so one is computed."""
    driver = drive()
    driver.submit("a", ids(10))
    table = driver.run("a").rows[0].block_table
    grant = swap(driver, "a")
    assert [source for source, _ in grant.copies] == list(table)
    assert all(8 <= target < 16 for _, target in grant.copies)
    assert figures(driver) == (3, 1, 0)
    assert driver.allocator.cached_prefix_tokens(driver.jobs["a"].view) == 10
    back = driver.run("a")
    assert (driver.cached["a"], back.rows[0].start, back.rows[0].count) == (10, 10, 1)
    assert [target for _, target in back.copies] == list(back.rows[0].block_table)
    assert figures(driver) == (0, 1, 1)
    driver.drain()


def test_with_a_step_in_flight_the_last_token_computed_comes_back_too() -> None:
    """Depth 2: the id in flight is delivered while the request is out; its keys and values were never computed."""
    driver = drive(depth=2)
    driver.submit("a", ids(6))
    driver.plan([("a", 6)])
    driver.plan([("a", 1)])
    driver.preempt("a")
    grant = driver.plan([])  # plans without rows are not launched: the copies wait for one that is
    assert (grant.copies, figures(driver)) == ((), (2, 1, 0))
    driver.book()
    driver.book()
    driver.submit("b", ids(3, 700), max_tokens=1)
    assert len(driver.run("b").copies) == 2
    driver.run("a")
    assert (len(driver.jobs["a"].ids), driver.cached["a"]) == (9, 7)
    driver.drain()


def test_amid_its_prompt_only_what_was_computed_comes_back() -> None:
    driver = drive()
    driver.submit("a", ids(20))
    driver.run("a", tokens=6)
    assert len(swap(driver, "a").copies) == 2
    back = driver.run("a")
    assert (back.rows[0].start, back.rows[0].count, len(back.copies)) == (6, 14, 2)
    driver.drain()


def test_a_request_ended_while_out_frees_its_host_blocks() -> None:
    driver = drive()
    driver.submit("a", ids(10))
    driver.run("a")
    swap(driver, "a")
    driver.finish("a")
    assert figures(driver) == (0, 1, 0)


def test_without_room_on_the_host_it_is_computed_again() -> None:
    driver = drive(host_blocks=2)
    driver.submit("a", ids(10))
    driver.run("a")
    assert swap(driver, "a").copies == ()
    driver.run("a")
    assert (driver.cached["a"], figures(driver)) == (0, (0, 0, 0))
    driver.drain()


def test_what_others_hold_stays_and_is_found_again() -> None:
    """Two full blocks are shared with a request that goes on: only the third is copied."""
    driver = drive(num_blocks=12)
    driver.submit("stays", ids(9))
    driver.submit("a", ids(10))
    driver.run("stays", "a")
    driver.preempt("a")
    assert len(driver.run("stays").copies) == 1
    back = driver.run("a")
    assert (driver.cached["a"], len(back.copies)) == (10, 1)
    assert driver.allocator.block_table("a")[:2] == driver.allocator.block_table("stays")[:2]
    driver.drain()


def test_what_can_still_be_found_is_not_copied_back() -> None:
    driver = drive()
    driver.submit("a", ids(10))
    driver.run("a")
    driver.preempt("a")
    driver.submit("b", ids(3, 700), max_tokens=1)
    driver.run("b")
    assert (len(driver.run("a").copies), driver.cached["a"]) == (1, 10)
    driver.drain()


def test_a_shared_beginning_that_is_gone_leaves_nothing_to_copy_back() -> None:
    driver = drive(num_blocks=12)
    driver.submit("other", ids(9))
    driver.submit("a", ids(10))
    driver.run("other", "a")
    driver.preempt("a")
    driver.run("other")
    driver.finish("other")
    driver.submit("bully", ids(47, 500), max_tokens=1)
    driver.run("bully")
    driver.finish("bully")
    assert driver.run("a").copies == ()
    assert (driver.cached["a"], figures(driver)) == (0, (0, 1, 0))
    driver.drain()


def test_it_needs_no_cache_of_prompts() -> None:
    """A request that may not read the cache still gets back what is its own."""
    driver = drive()
    driver.submit("a", ids(10), read_cache=False)
    driver.run("a")
    swap(driver, "a")
    driver.run("a")
    assert driver.cached["a"] == 10
    driver.drain()


def test_after_a_failed_step_nothing_on_the_host_is_trusted() -> None:
    """A step that failed may not have made its copies."""
    driver = drive(num_blocks=12)
    driver.submit("a", ids(10))
    driver.submit("b", ids(10, 500))
    driver.run("a", "b")
    driver.preempt("a")
    driver.plan([("b", 1)])
    assert figures(driver)[0] == 3
    driver.book(failed=("b",))
    assert figures(driver)[0] == 0
    driver.drain()


@pytest.mark.parametrize("preempt", ["swap", "auto"])
def test_swapping_without_host_blocks_is_refused(preempt: Any) -> None:
    with pytest.raises(ConfigError, match=r"allocator\.options\.host_blocks = 0: preempt = '(swap|auto)' needs"):
        PrefixAllocator(SharingOptions(preempt=preempt), make_context())


@pytest.mark.parametrize(("token_s", "swaps"), [(0.0, 0), (0.002, 0), (0.003, 1)])
def test_auto_swaps_where_copying_is_faster(token_s: float, swaps: int) -> None:
    """1 MiB per token and 1 GiB/s: 10 lost tokens in 3 blocks take 2 * 12 MiB / 1 GiB/s = 23 ms.  Computing them again
    takes ``10 * token_s``; before anything was measured it is taken for free."""
    options = SharingOptions("auto", 8, swap_gib_s=1.0, token_bytes=2**20)
    allocator = PrefixAllocator(options, make_context(8, 4))
    row = GrantedRow("a", 0, 10, ids(10), True, (), ())
    job = Driver(allocator).submit("a", ids(10))
    started = Driver(allocator)._start(job, 0)
    list(allocator.handle(StepPlan(1, (row,), (started,)), 0.0))
    list(allocator.handle(StepResult(1, ("a",), (7,), launched=0.0, finished=token_s * 10), 0.0))
    list(allocator.handle(StepPlan(2, (), preempted=("a",)), 0.0))
    allocator.check()
    assert allocator.stats()["swap_outs"] == swaps


# --- the whole engine ------------------------------------------------------------------------------------------------


def swapping(allocator: str, seed: int) -> tuple[Lab, dict[str, Submit]]:
    """The traffic of the other engine tests, with a host pool of any size."""
    rng = Random(seed)
    return traffic(allocator, seed, preempt=("swap", "auto")[seed % 2], host_blocks=rng.choice((1, 5, 20, 200)))


def play(allocator: str, seed: int) -> Counter[str]:
    it, submits = swapping(allocator, seed)
    it.sim.run(max_events=20_000)
    outputs, ends = it.outputs(), it.ends()
    assert ends.keys() == submits.keys()
    pool = it.sim.actors.allocator.num_blocks * it.sim.actors.allocator.block_size
    for rid, one in submits.items():
        assert outputs[rid] == expected_ids(one.prompt_ids, len(outputs[rid])), rid
        if ends[rid].reason == "length":
            most = min(one.sampling.max_tokens, CONTEXT - len(one.prompt_ids), pool - len(one.prompt_ids))
            assert len(outputs[rid]) == most, rid
    it.assert_empty()
    assert it.host.counters["denied"] == 0, "the draft allowed what the allocator denied"
    stats = it.sim.actors.allocator.stats()
    assert stats["swapped_blocks"] == 0
    return Counter({name: int(stats[name]) for name in ("swap_outs", "swap_ins")})


@pytest.mark.slow
@pytest.mark.parametrize("allocator", CACHING)
def test_outputs_are_those_of_undisturbed_requests(allocator: str) -> None:
    """B-06, B-08, A-10, C55 with swapping: nothing denied, nothing left, on either side."""
    seen = sum((play(allocator, seed) for seed in range(12)), Counter[str]())
    assert min(seen.values()) > 10, seen


@pytest.mark.soak
@pytest.mark.parametrize("allocator", CACHING)
def test_outputs_are_those_of_undisturbed_requests_for_long(allocator: str) -> None:
    for seed in range(1000, 1300):
        play(allocator, seed)


@pytest.mark.parametrize("depth", [1, 2])
def test_swapped_requests_are_computed_once(depth: Literal[1, 2]) -> None:
    """Two requests that together outgrow the pool: with swap, every position of either is computed exactly once."""
    computed = {}
    for preempt in ("recompute", "swap"):
        options = {"preempt": preempt, "host_blocks": 20}
        scheduler = SchedulerConfig(depth=depth)
        allocator = AllocatorConfig(use="prefix", block_size=4, options=options)
        settings = Config(paranoid=True, scheduler=scheduler, allocator=allocator)
        it = lab(settings, num_blocks=20, num_host_blocks=20)
        it.sim.at(0.0, submit("a", ids(30), 30), submit("b", ids(30, 300), 30))
        it.sim.run()
        assert it.outputs() == {"a": expected_ids(ids(30), 30), "b": expected_ids(ids(30, 300), 30)}
        assert it.host.counters["preemptions"] > 0
        assert (it.host.counters["recomputed_tokens"] > 0) == (preempt == "recompute")
        computed[preempt] = sum(row.count for grant in it.grants for row in grant.rows)
    wasted = depth - 1  # the step in flight when a request ends
    assert 2 * 59 <= computed["swap"] <= 2 * (59 + wasted) < computed["recompute"]


def test_cancelled_while_out() -> None:
    options = {"preempt": "swap", "host_blocks": 20}
    settings = Config(paranoid=True, allocator=AllocatorConfig(use="radix", block_size=4, options=options))
    it = lab(settings, num_blocks=20, num_host_blocks=20)
    it.sim.at(0.0, submit("a", ids(30), 30), submit("b", ids(30, 300), 30))
    it.sim.run(until=18.5)
    assert it.sim.actors.allocator.stats()["swapped_blocks"] > 0
    it.sim.post(Cancel("b"))
    it.sim.run()
    it.assert_empty()
    assert it.sim.actors.allocator.stats()["swapped_blocks"] == 0
    assert it.outputs()["a"] == expected_ids(ids(30), 30)


# --- on a model ------------------------------------------------------------------------------------------------------


def generate(
    folder: Path, prompts: list[tuple[int, ...]], num_blocks: int, depth: Literal[1, 2] = 1, **options: Any
) -> Any:
    """Greedy ids of all prompts at once, and the allocator's figures."""
    config = settings.Config(
        paranoid=True,
        scheduler=settings.SchedulerConfig(depth=depth, token_budget=16),
        allocator=AllocatorConfig(use="prefix", block_size=4, num_blocks=num_blocks, options=options),
        executor=ExecutorConfig(threads=1, weights="fp32", dtype="fp32", kv_dtype="fp32"),
        model=settings.ModelConfig(path=str(folder)),
    )
    executor = TorchExecutor(None, config)
    sim = Simulator(config, executor, sampler="standard")
    for index, prompt in enumerate(prompts):
        sim.at(0.0, Submit(str(index), prompt, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)))
    sim.run()
    executor.close()
    made = {str(index): list[int]() for index in range(len(prompts))}
    for emit in sim.emitted:
        for row in emit.rows:
            made[row.rid] += row.token_ids
    return list(made.values()), sim.actors.allocator.stats()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_a_model_says_the_same_as_alone(tmp_path: Path, depth: Literal[1, 2]) -> None:
    write_tiny_model(tmp_path)
    rng = Random(depth)
    prompts = [tuple(rng.choices(range(128), k=rng.randint(5, 30))) for _ in range(6)]
    alone = [generate(tmp_path, [prompt], 64)[0][0] for prompt in prompts]
    together, stats = generate(tmp_path, prompts, 24, depth, preempt="swap", host_blocks=40)
    assert together == alone
    assert stats["swap_ins"] > 0
