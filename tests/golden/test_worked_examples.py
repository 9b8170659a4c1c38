"""The textbook examples replay exactly."""

from __future__ import annotations

from collections import deque

from tests.support import config, lab, submit

from mainspring.allocators.paged import PagedAllocator


def test_token_budget_of_eight() -> None:
    """Example (a): chunked prefill and decode under one budget, running before waiting."""
    it = lab(config(token_budget=8))
    it.sim.at(0.0, submit("A", 10), submit("B", 3, max_tokens=3))
    it.sim.at(1.5, submit("C", 4))  # before step 3
    it.sim.at(3.5, submit("D", 12))  # before step 5
    it.sim.at(4.5, submit("E", 5))  # before step 6
    it.sim.run(until=5.0)
    assert it.batches() == ["A8", "A2* B3*", "A1* B1* C4*", "A1* B1* C1*", "A1* C1* D6", "A1* C1* D6*"]
    assert it.plans[4].released == ("B",)
    assert dict(it.plans[5].reasons) == {"E": "the step's token budget is used up"}


def test_paged_blocks() -> None:
    """Example (b): block tables and slots of A on the free list 7, 2, 5, 9, 4."""
    it = lab(config(block_size=4), num_blocks=10)
    allocator = it.sim.actors.allocator
    assert isinstance(allocator, PagedAllocator)
    kept = [block for block in allocator.free if block not in (7, 2, 5, 9, 4)]
    allocator.free.clear()
    allocator.free.extend([7, 2, 5, 9, 4, *kept])
    it.sim.at(0.0, submit("A", 10, max_tokens=4))
    it.sim.run()
    tables = [grant.rows[0].block_table for grant in it.grants if grant.rows]
    slots = [grant.rows[0].slot_mapping for grant in it.grants if grant.rows]
    assert tables == [(7, 2, 5), (7, 2, 5), (7, 2, 5), (7, 2, 5, 9)]
    assert slots[0][9] == 21  # logical block 2, offset 1, physical block 5
    assert slots[1:] == [(22,), (23,), (36,)]
    assert list(allocator.free) == [4, *kept, 7, 2, 5, 9]


def test_waste_is_less_than_a_block_per_request() -> None:
    it = lab(config(block_size=4))
    for length in range(1, 13):
        it.sim.at(0.0, submit(f"r{length}", length, max_tokens=5))
    it.sim.run()
    for grant in it.grants:
        for row in grant.rows:
            assert 0 <= len(row.block_table) * 4 - (row.start + row.count) < 4


def test_slot_refill() -> None:
    """Example (c): two slots, jobs of 2, 4, 3 and 1 steps; a slot is refilled as soon as it is free."""
    it = lab(config(max_running=2))
    jobs = deque([("A", 2), ("B", 4), ("C", 3), ("D", 1)])
    it.sim.at(0.0, *(submit(rid, 1, max_tokens=steps) for rid, steps in jobs))
    it.sim.run()
    running = ["".join(row.rid for row in plan.rows) for plan in it.plans if plan.rows]
    assert running == ["AB", "AB", "BC", "BC", "CD"]
