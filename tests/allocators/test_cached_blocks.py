"""Blocks that nobody holds: eviction, reset, events and giving back; the same promises for ``prefix`` and ``radix``."""

from __future__ import annotations

from random import Random

import pytest
from tests.allocators.sharing import engine, ids

from mainspring.allocators.sharing.allocator import SharingAllocator
from mainspring.allocators.sharing.events import CacheMirror
from mainspring.core.messages import Row, StepPlan


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
