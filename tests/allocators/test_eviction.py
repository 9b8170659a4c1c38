"""Eviction orders, leases and expiry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.allocators.driver import Driver, make_context
from tests.allocators.sharing import KINDS, ids

from mainspring.allocators.sharing.eviction import KEYS, eviction_key
from mainspring.core.errors import ConfigError


@dataclass(unsafe_hash=True)
class Record:
    """What a key sees."""

    created: int = 0
    used: int = 0
    hits: int = 0
    priority: int = 0


OLD_AND_POPULAR = Record(created=1, used=9, hits=5, priority=3)
FRESH = Record(created=8, used=8, hits=0, priority=3)
SEEN_TWICE = Record(created=4, used=5, hits=1, priority=1)
LEAST_IMPORTANT = Record(created=6, used=7, hits=2, priority=8)
ALL = (OLD_AND_POPULAR, FRESH, SEEN_TWICE, LEAST_IMPORTANT)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("lru", (SEEN_TWICE, LEAST_IMPORTANT, FRESH, OLD_AND_POPULAR)),
        ("mru", (OLD_AND_POPULAR, FRESH, LEAST_IMPORTANT, SEEN_TWICE)),
        ("fifo", (OLD_AND_POPULAR, SEEN_TWICE, LEAST_IMPORTANT, FRESH)),
        ("lfu", (FRESH, SEEN_TWICE, LEAST_IMPORTANT, OLD_AND_POPULAR)),
        ("slru", (FRESH, SEEN_TWICE, LEAST_IMPORTANT, OLD_AND_POPULAR)),
        ("priority", (LEAST_IMPORTANT, FRESH, OLD_AND_POPULAR, SEEN_TWICE)),
    ],
)
def test_e99_each_key_orders_by_its_own_history(name: str, order: tuple[Record, ...]) -> None:
    """E99: keys are pure functions of an entry's record; the smallest goes first."""
    assert tuple(sorted(ALL, key=KEYS[name])) == order


def test_e99_ties_of_lfu_and_slru_go_by_last_use() -> None:
    later = replace(SEEN_TWICE, used=6)
    assert KEYS["lfu"](SEEN_TWICE) < KEYS["lfu"](later)
    assert KEYS["slru"](SEEN_TWICE) < KEYS["slru"](replace(SEEN_TWICE, used=6, hits=9))


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"allocator.evict = 'lrv'.*did you mean 'lru'"):
        eviction_key("lrv")


def survivors(kind: str, evict: str, order: str, take: int = 1, **context: Any) -> str:
    """Prompts a, b, c of one block each are used in ``order``; then ``take`` blocks are needed: whose are left?"""
    driver = Driver(KINDS[kind](None, make_context(4, 4, evict, **context)))
    first = {name: 100 * number for number, name in enumerate("abc", 1)}
    for turn, name in enumerate(order):
        driver.prefill(f"{name}{turn}", ids(5, first[name]))
    driver.submit("hog", ids(4 * take + 3, 9000), max_tokens=1)
    driver.run("hog")
    left = [name for name in "abc" if driver.allocator.find("", ids(5, first[name]))]
    return "".join(left)


@pytest.mark.parametrize(
    ("evict", "order", "left"),
    [
        ("lru", "abca", "ac"),
        ("fifo", "abca", "bc"),
        ("mru", "abcb", "ac"),
        ("lfu", "abcaab", "ab"),
        ("slru", "abcba", "ab"),
        ("slru", "abcabc", "bc"),
    ],
)
def test_e99_the_allocator_follows_its_key(kind: str, evict: str, order: str, left: str) -> None:
    assert survivors(kind, evict, order) == left


@pytest.mark.parametrize("evict", sorted(KEYS))
def test_b11_every_key_evicts_ends_first(kind: str, evict: str) -> None:
    """B-11: whatever the key, what is left of a prompt is an unbroken prefix and eviction never gets stuck."""
    driver = Driver(KINDS[kind](None, make_context(12, 4, evict)))
    for turn in range(30):
        driver.prefill(f"r{turn}", ids(8, 100) + ids(4 * (turn % 7) + 1, 1000 * turn))
    driver.submit("all", ids(47, 50_000), max_tokens=1)
    assert len(driver.run("all").rows[0].block_table) == 12


def test_a_lease_outlives_the_eviction_order_but_never_blocks(kind: str) -> None:
    """Leased prefixes go last; running work still gets their blocks when nothing else is left."""
    driver = Driver(KINDS[kind](None, make_context(5, 4)))
    driver.prefill("kept", ids(9))
    driver.prefill("other", ids(5, 500))
    assert driver.allocator.lease(ids(9), "", until=10.0) == 8
    assert driver.allocator.lease(ids(9), "elsewhere", until=10.0) == 0
    driver.check()
    driver.submit("hog", ids(20, 900))
    driver.run("hog", tokens=12)
    assert len(driver.allocator.find("", ids(9))) == 2  # the newer, unleased one went
    driver.run("hog", tokens=8)
    assert not driver.allocator.find("", ids(9))


def test_a_lease_ends(kind: str) -> None:
    driver = Driver(KINDS[kind](None, make_context(4, 4)))
    driver.prefill("kept", ids(9))
    driver.allocator.lease(ids(9), "", until=10.0)
    driver.allocator.lease(ids(9), "", until=3.0)  # never shortened
    driver.wait(4.0)
    driver.prefill("other", ids(5, 500))
    driver.wait(7.0)
    driver.submit("hog", ids(7, 900), max_tokens=1)
    driver.run("hog")
    assert len(driver.allocator.find("", ids(9))) == 1  # by last use again: the tail of the oldest goes
    assert driver.allocator.find("", ids(5, 500))


def test_idle_entries_expire(kind: str) -> None:
    """Past ``max_idle_s`` an unused entry is gone, its block plainly free; used and leased ones stay."""
    driver = Driver(KINDS[kind](None, make_context(16, 4, max_idle_s=5.0)))
    driver.prefill("a", ids(9))
    driver.prefill("leased", ids(9, 500))
    driver.allocator.lease(ids(9, 500), "", until=20.0)
    driver.submit("busy", ids(9, 900))
    driver.run("busy")
    driver.wait(4.9)
    driver.prefill("again", ids(5))  # the first block of a is used once more
    driver.wait(0.2)
    assert len(driver.allocator.find("", ids(9))) == 1
    driver.wait(4.9)
    assert not driver.allocator.find("", ids(9))
    assert len(driver.allocator.find("", ids(9, 500))) == 2
    assert len(driver.allocator.find("", ids(9, 900))) == 2
    driver.wait(10.1)
    assert not driver.allocator.find("", ids(9, 500))
    assert driver.allocator.stats()["expirations"] == 4
    assert driver.allocator.stats()["free_blocks"] == 13


def test_bookkeeping_stays_small_over_many_reuses(kind: str) -> None:
    """A block used again and again leaves no trail of stale records behind."""
    driver = Driver(KINDS[kind](None, make_context(8, 4, max_idle_s=1e9)), checks=False)
    for turn in range(2000):
        driver.prefill(f"r{turn}", ids(17))
        driver.allocator.lease(ids(17), "", until=1e6 + turn)
    catalog = driver.allocator.catalog
    for records in (catalog._heap, catalog._idle_since, catalog._leases):
        assert len(records) < 100
    assert not driver.allocator.sequences
    assert not driver.allocator._fresh
    driver.allocator.check()
