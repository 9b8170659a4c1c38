"""Prefix sharing: what is found, and by whom; the same promises for ``prefix`` and ``radix``."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from tests.allocators.driver import Driver, make_context
from tests.allocators.sharing import engine, ids, tables

from mainspring.allocators.paged import PagedAllocator
from mainspring.allocators.sharing.allocator import SharingAllocator
from mainspring.core.messages import SamplingParams


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
