"""Copy-on-write forks: nothing is copied until a shared block is written, and then once per writer but the last."""

from __future__ import annotations

import pytest
from tests.allocators.driver import Driver, make_context
from tests.allocators.sharing import KINDS, ids, tables

from mainspring.core.messages import StepPlan


@pytest.fixture
def driver(kind: str) -> Driver:
    made = Driver(KINDS[kind](None, make_context(16, 4)), depth=2)
    made.submit("p", ids(10), max_tokens=12)
    made.run("p")
    return made


def test_forking_copies_nothing(driver: Driver) -> None:
    free = driver.allocator.free_blocks
    driver.fork("p", "c")
    assert driver.allocator.free_blocks == free
    assert driver.allocator.block_table("c") == driver.allocator.block_table("p")
    assert [driver.allocator.num_users(block) for block in driver.allocator.block_table("c")] == [2, 2, 2]


def test_the_first_writer_copies_the_partial_tail_and_the_last_does_not(driver: Driver) -> None:
    driver.fork("p", "c1")
    driver.fork("p", "c2")
    tail = driver.allocator.block_table("p")[2]
    grant = driver.run("p", "c1", "c2")
    assert [source for source, _ in grant.copies] == [tail, tail]
    ends = [table[2] for table in tables(grant).values()]
    assert len(set(ends)) == 3
    assert ends[2] == tail
    assert {table[:2] for table in tables(grant).values()} == {driver.tables["p"][:2]}
    assert driver.run("p", "c1", "c2").copies == ()
    driver.drain()


def test_a_fork_goes_its_own_way(driver: Driver) -> None:
    """The driver compares every context that is read with the request's own ids."""
    driver.fork("p", "c")
    for _ in range(8):
        driver.run("p", "c")
    assert driver.jobs["p"].ids != driver.jobs["c"].ids
    driver.fork("c", "grandchild")
    driver.finish("p")
    for _ in range(3):
        driver.run("c", "grandchild")
    driver.drain()


def test_c48_source_and_target_of_a_copy_are_fenced(driver: Driver) -> None:
    """C48: both stay out of the pool until the step that carries the copy is booked, whoever ends meanwhile."""
    driver.fork("p", "c")
    grant = driver.plan([("p", 1)])
    ((source, target),) = grant.copies
    driver.end("p")
    driver.end("c")
    driver.plan([])
    allocator = driver.allocator
    assert allocator.stats()["fenced_blocks"] == 4
    assert source not in allocator.free
    assert target not in allocator.free
    driver.book()
    assert allocator.free_blocks == 16
    driver.check()


def test_the_draft_counts_the_copy(driver: Driver) -> None:
    driver.fork("p", "c")
    draft = driver.allocator.draft()
    assert draft.match(driver.jobs["c"].view) == 10
    assert (draft.need("p", 11), draft.need("c", 11)) == (1, 1)
    assert draft.extend("p", 11) == 0
    assert draft.need("c", 11) == 0  # now its only user
    assert draft.extend("c", 13) == 0
    assert draft.free_blocks == driver.allocator.free_blocks - 2


def test_a_fork_of_a_prompt_computes_its_last_token_again(driver: Driver) -> None:
    """A child whose parent has not sampled yet still needs the logits of the last prompt token."""
    driver.submit("q", ids(8, 500))
    driver.plan([("q", 8)])
    assert driver.allocator.fork("q", "d") == 7
    assert driver.allocator.block_table("d") == driver.allocator.block_table("q")
    driver.allocator.handle(StepPlan(999, (), released=("d",)), 0.0)
    driver.book()
    driver.drain()


def test_a_fork_that_never_starts_is_released_like_any_other(driver: Driver) -> None:
    driver.fork("p", "c")
    driver.finish("c")
    driver.finish("p")
    assert driver.allocator.free_blocks == 16


def test_a_preempted_fork_finds_its_prefix_in_the_cache(driver: Driver) -> None:
    driver.fork("p", "c")
    driver.run("p", "c")
    driver.preempt("c")
    driver.run("c")
    assert driver.cached["c"] == 8
    driver.drain()


def test_forks_count_no_hits(driver: Driver) -> None:
    before = driver.allocator.stats()
    driver.fork("p", "c")
    driver.run("c")
    after = driver.allocator.stats()
    assert (after["lookups"], after["hit_tokens"]) == (before["lookups"], before["hit_tokens"])


def test_a_fork_never_overwrites_what_its_parent_made_findable(driver: Driver) -> None:
    """Forked with an id in flight: the block fills with the parent's id, and the child samples another one."""
    driver.submit("q", ids(7, 500))
    driver.plan([("q", 7)])
    driver.plan([("q", 1)])  # writes position 7, whose id nobody knows yet
    driver.fork("q", "d")
    driver.book()
    driver.book()
    known = tuple(driver.jobs["q"].ids[:8])
    driver.finish("q")
    for _ in range(3):
        driver.run("d")
    assert driver.prefill("probe", (*known, 1)) == 8
    driver.drain()
