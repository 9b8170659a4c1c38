"""Prefix sharing: the same promises for ``prefix`` and ``radix``."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest
from tests.allocators.driver import Driver, make_context

from mainspring.allocators.paged import PagedAllocator
from mainspring.allocators.prefix import PrefixAllocator
from mainspring.allocators.radix import RadixAllocator
from mainspring.allocators.sharing.allocator import SharingAllocator
from mainspring.allocators.sharing.events import CacheMirror
from mainspring.core.messages import Row, SamplingParams, StepGrant, StepPlan

KINDS: dict[str, Any] = {"prefix": PrefixAllocator, "radix": RadixAllocator}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def engine(kind: str, num_blocks: int = 16, block_size: int = 4, depth: int = 1, **context: Any) -> Driver:
    return Driver(KINDS[kind](None, make_context(num_blocks, block_size, **context)), depth)


def ids(count: int, first: int = 100) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def tables(grant: StepGrant) -> dict[str, tuple[int, ...]]:
    return {row.rid: row.block_table for row in grant.rows}


def test_the_worked_example_of_sharing(kind: str) -> None:
    """Golden: after A of 10 tokens on the free list 7, 2, 5, 9, 4, B shares its first 8: 7, 2, 4, no copy."""
    driver = engine(kind, num_blocks=10)
    allocator: SharingAllocator = driver.allocator
    allocator.free.clear()
    allocator.free.extend([7, 2, 5, 9, 4, 0, 1, 3, 6, 8])
    driver.submit("A", ids(10), max_tokens=20)
    grant = driver.run("A")
    assert tables(grant) == {"A": (7, 2, 5)}
    assert grant.rows[0].slot_mapping[9] == 21
    for table in ((7, 2, 5), (7, 2, 5), (7, 2, 5, 9)):  # positions 10, 11, 12
        assert tables(driver.run("A")) == {"A": table}
    driver.submit("B", (*ids(8), 900, 901), max_tokens=20)
    grant = driver.run("B")
    assert tables(grant) == {"B": (7, 2, 4)}
    assert (driver.cached["B"], grant.rows[0].start, grant.copies) == (8, 8, ())
    assert [allocator.num_users(block) for block in (7, 2, 5, 9, 4)] == [2, 2, 1, 1, 1]
    driver.drain()


def test_e76_two_identical_prompts_in_one_step(kind: str) -> None:
    """E76: 100 tokens, block 16: the first computes 100, the second only 4."""
    driver = engine(kind, num_blocks=32, block_size=16)
    driver.submit("a", ids(100))
    driver.submit("b", ids(100))
    grant = driver.run("a", "b")
    assert [(row.start, row.count) for row in grant.rows] == [(0, 100), (96, 4)]
    assert grant.rows[0].block_table[:6] == grant.rows[1].block_table[:6]
    assert driver.allocator.stats()["used_blocks"] == 8


def test_sharing_with_a_chunk_of_the_same_step(kind: str) -> None:
    """What the earlier row computes in this step is hit, and not more."""
    driver = engine(kind, num_blocks=32, block_size=4)
    driver.submit("a", ids(40))
    driver.submit("b", ids(40))
    driver.run("a", tokens=8)
    driver.plan([("a", 10), ("b", 100)])
    assert driver.cached["b"] == 16
    driver.book()
    driver.run("a")
    assert driver.allocator.stats()["merged_blocks"] > 0  # both computed the rest; one copy stays
    assert driver.run("a", "b").rows[0].block_table[:9] == driver.tables["b"][:9]
    driver.drain()


def test_e77_the_next_turn_computes_only_the_tail(kind: str) -> None:
    """E77: the next prompt is the last one and its answer: only the rest of the last block is new."""
    driver = engine(kind, num_blocks=32)
    job = driver.submit("a", ids(10), max_tokens=9)
    while not job.full:
        driver.run("a")
    turn = tuple(job.ids)
    driver.finish("a")
    assert len(turn) == 19
    assert (
        driver.prefill("b", (*turn, 900, 901)) == 16
    )  # the last id of an answer is never computed: block 4 is not full
    driver.drain()


def test_e77_at_depth_two_ids_in_flight_become_findable_when_they_are_known(kind: str) -> None:
    driver = engine(kind, num_blocks=32, depth=2)
    job = driver.submit("a", ids(10), max_tokens=9)
    driver.plan([("a", 10)])
    while not job.full:
        driver.plan([("a", 1)])
        driver.book()
    driver.book()
    driver.finish("a")
    assert driver.prefill("b", (*job.ids, 900)) == 16


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_b04_e71_at_least_the_last_token_is_computed(kind: str, length: int) -> None:
    """B-04, E71: three times each; the third hit equals the second; a longer prompt hits both blocks afterwards."""
    driver = engine(kind, block_size=16)
    hits = [driver.prefill(f"r{turn}", ids(length)) for turn in range(3)]
    assert hits == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16]
    if length >= 32:
        assert driver.prefill("longer", ids(48)) == 32


def test_e91_a_hit_is_whole_blocks(kind: str) -> None:
    """E91: match lengths are multiples of the block size, whatever the common prefix."""
    driver = engine(kind, num_blocks=64)
    driver.prefill("a", ids(30))
    for common in range(31):
        assert driver.prefill(f"b{common}", (*ids(common), 900 + common, 901, 902)) == min(common, 28) // 4 * 4


def test_e69_b11_ends_of_chains_are_evicted_first(kind: str) -> None:
    """E69, B-11: under pressure a prompt loses its tail first; the rest is an unbroken prefix."""
    driver = engine(kind, num_blocks=8)
    driver.prefill("a", ids(16))  # four blocks
    driver.submit("hog", ids(31, 1000))
    for tokens, left in ((17, 12), (4, 8), (4, 4), (4, 0)):  # five blocks, then one more each time
        driver.run("hog", tokens=tokens)
        probe = driver.submit("probe", ids(17))
        assert driver.allocator.cached_prefix_tokens(probe.view) == left


def test_e70_e59_a_hit_takes_cached_blocks_out_of_the_free_ones(kind: str) -> None:
    """E70, D59: free blocks have no user; a hit on cached ones makes them used and the free count drops by as much."""
    driver = engine(kind, num_blocks=8)
    driver.prefill("a", ids(16))
    allocator: SharingAllocator = driver.allocator
    assert allocator.free_blocks == 8
    driver.submit("b", ids(17))
    (row,) = driver.run("b").rows
    assert row.start == 16
    assert allocator.free_blocks == 3
    assert [allocator.num_users(block) for block in row.block_table] == [1] * 5
    assert not set(row.block_table) & set(allocator.free)
    assert all(allocator.num_users(block) == 0 for block in allocator.free)


def test_e72_b09_a_reused_block_loses_its_identity(kind: str) -> None:
    """E72, B-09: fill the pool with X, overwrite it with others, send X again: only what remains is reported."""
    driver = engine(kind, num_blocks=6)
    driver.prefill("x", ids(20))
    driver.prefill("y", ids(22, 500))  # all six blocks
    assert driver.prefill("x2", ids(20)) == 0
    driver.prefill("z", ids(22, 900))
    assert driver.prefill("y2", ids(22, 500)) == 0


def test_e74_a_denied_start_leaves_users_and_eviction_order_alone(kind: str) -> None:
    """E74: pinned hits of a start that gets no room are let go as if nothing had been."""
    driver = engine(kind, num_blocks=6)
    driver.prefill("old", ids(4))
    driver.prefill("new", ids(4, 500))
    allocator: SharingAllocator = driver.allocator
    job = driver.submit("greedy", ids(4) + ids(30, 900))
    plan = StepPlan(90, (Row("greedy", 4, 30, job.known_ids(4, 34), True),), (driver._start(job, 4),))
    (grant,) = allocator.handle(plan, 0.0)
    assert grant.denied == ("greedy",)  # type: ignore[attr-defined]
    allocator.check()
    assert allocator.free_blocks == 6
    driver.jobs.clear()
    driver.submit("big", ids(20, 2000))
    driver.run("big")  # needs five: one of the two cached ones goes, the one that was older before
    probe = driver.submit("probe", ids(5))
    assert allocator.cached_prefix_tokens(probe.view) == 0
    probe = driver.submit("probe", ids(5, 500))
    assert allocator.cached_prefix_tokens(probe.view) == 4


def test_b02_e79_e93_salts_never_meet(kind: str) -> None:
    """B-02, E79, E93: the same prompt under another salt computes everything; under the same salt it hits."""
    driver = engine(kind, num_blocks=64)
    for salt, other in itertools.permutations(("", "a", "b"), 2):
        driver.allocator.reset()
        assert driver.prefill("x", ids(17), cache_salt=salt) == 0
        assert driver.prefill("y", ids(17), cache_salt=other) == 0
        assert driver.prefill("z", ids(17), cache_salt=salt) == 16
        assert driver.prefill("z2", ids(17), cache_salt=other) == 16
        assert driver.prefill("u", ids(17), cache_salt="unknown") == 0


def test_b03_e81_only_content_and_salt_are_identity(kind: str) -> None:
    """B-03, E81: another request id, tenant, priority or sampling shares the prefix all the same."""
    driver = engine(kind)
    driver.prefill("a", ids(17), priority=1, tenant="t1")
    job = driver.submit("b", ids(17), max_tokens=3, priority=9, tenant="t2")
    params = SamplingParams(temperature=0.1, seed=77, stop_token_ids=(3,))
    assert job.submit.sampling != params
    driver.run("b")
    assert driver.cached["b"] == 16


def test_e82_e83_opting_out_reads_nothing_and_still_writes(kind: str) -> None:
    """E82, E83: a request that may not read the cache computes everything; what it computed serves others."""
    driver = engine(kind, num_blocks=32)
    driver.prefill("a", ids(9))
    assert driver.prefill("b", ids(17), read_cache=False) == 0
    assert driver.prefill("c", ids(17)) == 16
    assert driver.allocator.stats()["lookups"] == 2  # b was none


def test_e84_without_a_cache_there_are_no_hits_and_no_misses() -> None:
    """E84: ``paged`` reports no hit statistics at all."""
    driver = Driver(PagedAllocator(None, make_context()))
    assert [driver.prefill(rid, ids(17)) for rid in "ab"] == [0, 0]
    assert not {name for name in driver.allocator.stats() if "hit" in name or "lookup" in name}


def test_e85_hits_are_counted_once_per_admission(kind: str) -> None:
    """E85: deferred thrice counts once; preempted and resumed counts apart; not scheduled counts nothing."""
    driver = engine(kind, num_blocks=6)
    driver.prefill("a", ids(9))
    driver.submit("hog", ids(19, 500))
    driver.run("hog")
    driver.submit("b", ids(9))
    before = driver.allocator.stats()["lookups"]
    for _ in range(3):
        assert not driver.run("b").rows
    assert driver.allocator.stats()["lookups"] == before
    driver.finish("hog")
    driver.run("b")
    stats = driver.allocator.stats()
    assert (stats["lookups"], stats["resumed_lookups"]) == (before + 1, 0)
    driver.preempt("b")
    driver.run("b")
    stats = driver.allocator.stats()
    assert (stats["lookups"], stats["resumed_lookups"], stats["resumed_hit_tokens"]) == (before + 1, 1, 8)


def test_hit_rate_with_and_without_the_first_block(kind: str) -> None:
    driver = engine(kind, num_blocks=64)
    driver.prefill("a", ids(4) + ids(4, 500))
    driver.prefill("b", ids(4) + ids(4, 600))
    stats = driver.allocator.stats()
    assert stats["hit_rate"] == 4 / 16
    assert stats["hit_rate_beyond_first_block"] == 0


def test_e87_b13_reset(kind: str) -> None:
    """E87, B-13: refused while blocks are in use or in flight; forced, what runs keeps its own and goes on unharmed."""
    driver = engine(kind, num_blocks=32, depth=2)
    allocator: SharingAllocator = driver.allocator
    driver.prefill("old", ids(17))
    for rid in ("a", "b"):
        driver.submit(rid, ids(17) + ids(8, 700))
    driver.submit("c", ids(17, 900))
    driver.plan([("a", 100), ("b", 100), ("c", 5)])
    findable = allocator.stats()["findable_blocks"]
    assert findable > 0
    assert allocator.reset() is False
    assert allocator.stats()["findable_blocks"] == findable
    assert allocator.reset(force=True) is True
    assert allocator.stats()["findable_blocks"] == 0
    driver.check()
    driver.book()
    for _ in range(4):
        driver.run("a", "b", "c")
    assert allocator.stats()["findable_blocks"] == 0  # what was computed before may be stale: it stays private
    driver.drain()
    assert allocator.reset() is True
    assert driver.prefill("again", ids(17)) == 0
    assert driver.prefill("again2", ids(17)) == 16


def test_b07_after_a_reset_nothing_old_is_hit(kind: str) -> None:
    """B-07: a change of weights is followed by a reset; the same prompt is then computed from the start."""
    driver = engine(kind)
    driver.prefill("a", ids(17))
    assert driver.allocator.reset()
    assert driver.prefill("b", ids(17)) == 0


def test_e88_events_rebuild_the_cache(kind: str) -> None:
    """E88: stored with parent, removed, cleared: a mirror that hears the events knows every cached prefix."""
    driver = engine(kind, num_blocks=8)
    allocator: SharingAllocator = driver.allocator
    mirror = CacheMirror()
    allocator.observe(mirror)
    rng = Random(5)
    bases = [tuple(rng.randrange(10, 13) for _ in range(24)) for _ in range(2)]
    for number in range(60):
        cut = rng.randint(0, 20)
        prompt = rng.choice(bases)[:cut] + tuple(rng.randrange(10, 13) for _ in range(rng.randint(1, 8)))
        driver.prefill(f"r{number}", prompt, cache_salt=rng.choice(("", "s")))
        known = mirror.prefixes()
        assert len(known) == allocator.stats()["findable_blocks"]
        for salt, prefix in known:
            found = allocator.find(salt, (*prefix, 0))
            assert len(found) * 4 == len(prefix)
            assert found[-1].tokens == prefix[-4:]
        if number == 40:
            assert allocator.reset()
            assert mirror.blocks == {}
    assert allocator.stats()["evictions"] > 0


def test_a10_a_request_that_is_looked_at_but_not_scheduled_holds_nothing(kind: str) -> None:
    """A-10: match and unmatch leave no trace in the allocator or in the draft."""
    driver = engine(kind, num_blocks=8)
    driver.prefill("a", ids(17))
    job = driver.submit("b", ids(17))
    draft = driver.allocator.draft()
    free = draft.free_blocks
    assert draft.match(job.view) == 16
    assert draft.free_blocks == free - 4
    assert draft.need("b", 17) == 1
    draft.unmatch("b")
    assert draft.free_blocks == free == driver.allocator.free_blocks
    assert driver.allocator.held_blocks("b") == 0


def test_e98_depth_first_order_reaches_the_best_hit_rate(kind: str) -> None:
    """E98: with room for the longest request alone, visiting the prefix tree depth first hits whatever can be hit."""
    rng = Random(3)
    for _ in range(20):
        prompts: set[tuple[int, ...]] = {()}
        for _ in range(30):
            base = rng.choice(sorted(prompts))
            prompts.add((*base[: rng.randint(0, len(base))], *(rng.randrange(3) for _ in range(rng.randint(1, 4)))))
        ordered = sorted(prompts - {()})
        longest = max(map(len, ordered))
        distinct = {prompt[: size + 1] for prompt in ordered for size in range(len(prompt))}
        driver = engine(kind, num_blocks=longest + 1, block_size=2)
        hits = [
            driver.prefill(str(number), (*(token for node in prompt for token in (node, 7)), 9))
            for number, prompt in enumerate(ordered)
        ]
        assert sum(hits) // 2 == sum(map(len, ordered)) - len(distinct)


def test_failed_rows_leave_nothing_findable(kind: str) -> None:
    """What a failed step wrote may be anything: it is never hit, and who shared it before keeps working."""
    driver = engine(kind, num_blocks=32, depth=2)
    driver.prefill("good", ids(9))
    driver.submit("bad", ids(25))
    driver.plan([("bad", 25)])
    driver.book(failed=("bad",))
    driver.plan([])
    assert driver.prefill("next", ids(25)) == 8
    driver.drain()


def test_two_requests_that_computed_the_same_end_up_with_one_block(kind: str) -> None:
    """Twins are merged: with both running, one takes the other's block; with nobody on it, the cache moves."""
    driver = engine(kind, num_blocks=32)
    driver.submit("a", ids(18))
    driver.submit("b", ids(18), read_cache=False)
    driver.run("a", "b")
    assert driver.tables["a"][:4] != driver.tables["b"][:4]
    driver.run("a", "b")
    assert driver.tables["a"][:4] == driver.tables["b"][:4]
    driver.finish("a", "b")
    findable = driver.allocator.stats()["findable_blocks"]
    driver.prefill("c", ids(18), read_cache=False)
    assert driver.allocator.stats()["findable_blocks"] == findable
    driver.drain()


def test_d65_blocks_taken_after_eviction_do_not_overlap(kind: str) -> None:
    """D65, D58: drain and refill the pool again and again; every block is handed out once at a time."""
    driver = engine(kind, num_blocks=8)
    for turn in range(20):
        driver.submit("a", ids(14, 1000 * turn), max_tokens=1)
        driver.submit("b", ids(15, 1000 * turn + 500), max_tokens=1)
        grant = driver.run("a", "b")
        assert sorted(block for row in grant.rows for block in row.block_table) == list(range(8))
        driver.finish(*(("a", "b") if turn % 2 else ("b", "a")))


def test_d57_taking_from_an_exhausted_pool_raises(kind: str) -> None:
    allocator: SharingAllocator = engine(kind, num_blocks=2).allocator
    assert sorted(allocator.pool.take() for _ in range(2)) == [0, 1]
    with pytest.raises(AssertionError, match="no block is available"):
        allocator.pool.take()


def test_b05_giving_back_a_block_without_users_raises(kind: str) -> None:
    """E94, B-05: a count of users never goes below zero."""
    allocator: SharingAllocator = engine(kind, num_blocks=2).allocator
    block = allocator.pool.take()
    allocator.pool.drop(block, 0)
    with pytest.raises(AssertionError, match="given back twice"):
        allocator.pool.drop(block, 0)


def test_partial_blocks_are_reused_before_anything_cached_goes(kind: str) -> None:
    driver = engine(kind, num_blocks=6)
    driver.prefill("a", ids(10))  # two full blocks and a partial one
    partial = driver.tables["a"][2]
    driver.submit("b", ids(3, 500))
    assert driver.run("b").rows[0].block_table == (partial,)
    assert driver.allocator.stats()["evictions"] == 0
