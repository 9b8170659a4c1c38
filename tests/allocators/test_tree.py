"""The radix tree and the hash chain as data structures: both find the same; only their shapes differ."""

from __future__ import annotations

from random import Random

import pytest

from mainspring.allocators.sharing.chain import ChainLookup
from mainspring.allocators.sharing.entries import Entry, Lookup
from mainspring.allocators.sharing.tree import TreeLookup


class Content:
    """Inserts whole sequences block by block and remembers them."""

    def __init__(self, lookup: Lookup, block_size: int = 1) -> None:
        self.lookup, self.size = lookup, block_size
        self.entries: list[Entry] = []
        self.num_inserted = 0

    def insert(self, *tokens: int, salt: str = "") -> list[Entry]:
        path = self.lookup.walk(salt, tokens, len(tokens) // self.size)
        for start in range(len(path) * self.size, len(tokens), self.size):
            parent = path[-1] if path else None
            number, part = self.num_inserted, tokens[start : start + self.size]
            entry = Entry(number, parent, salt, part, number, 0)
            self.num_inserted += 1
            if parent:
                parent.num_children += 1
            self.lookup.insert(entry)
            self.lookup.check()
            self.entries.append(entry)
            path.append(entry)
        return path

    def remove(self, entry: Entry) -> None:
        self.lookup.remove(entry)
        self.lookup.check()
        self.entries.remove(entry)
        if entry.parent:
            entry.parent.num_children -= 1

    def find(self, *tokens: int, salt: str = "") -> list[int]:
        return [entry.block for entry in self.lookup.walk(salt, tokens, len(tokens) // self.size)]


@pytest.fixture(params=["chain", "tree", "chain of equal hashes"])
def content(request: pytest.FixtureRequest) -> Content:
    if request.param == "tree":
        return Content(TreeLookup(1))
    return Content(ChainLookup(1) if request.param == "chain" else ChainLookup(1, lambda parent, tokens: 3))


def test_e90_inserting_a_branch_adds_only_what_is_new(content: Content) -> None:
    """E90: 1..8, then 1, 2, 9, 10: ten blocks; every query returns the right ones and changes nothing."""
    content.insert(*range(1, 9))
    content.insert(1, 2, 9, 10)
    assert len(content.entries) == 10
    assert content.find(1, 2, 3, 4, 5, 6, 7, 8) == list(range(8))
    assert content.find(1, 2, 9, 10) == [0, 1, 8, 9]
    assert content.find(1, 2, 3, 99) == [0, 1, 2]
    assert content.find(1, 2, 9, 10, 11) == [0, 1, 8, 9]
    assert content.find(2) == []
    assert content.find(1, salt="x") == []
    content.lookup.check()
    assert len(content.entries) == 10


def test_e90_the_tree_splits_between_blocks_where_prompts_part() -> None:
    tree = TreeLookup(1)
    content = Content(tree)
    content.insert(*range(1, 9))
    assert tree.num_nodes == 1
    content.insert(1, 2, 9, 10)
    assert tree.num_nodes == 3  # 1 2 | 3..8 | 9 10
    content.insert(1, 2, 9, 10, 11)
    assert tree.num_nodes == 3  # the end of a run just grows
    content.insert(1, 2, 9, 12)
    assert tree.num_nodes == 5


def test_e93_each_namespace_is_its_own(content: Content) -> None:
    """E93: one sequence under several salts never matches across them."""
    for salt in ("a", "b", ""):
        content.insert(1, 2, 3, salt=salt)
    assert len(content.entries) == 9
    assert content.find(1, 2, 3, salt="a") == [0, 1, 2]
    assert content.find(1, 2, 3, salt="b") == [3, 4, 5]
    assert content.find(1, 2, 3, salt="unknown") == []


def test_e78_position_is_part_of_the_identity(content: Content) -> None:
    """E78: equal blocks at different depths are different entries; each knows the one before it."""
    path = content.insert(5, 5, 5)
    assert [entry.block for entry in path] == [0, 1, 2]
    assert [entry.parent for entry in path] == [None, path[0], path[1]]


@pytest.mark.parametrize("block_size", [1, 3])
def test_chain_and_tree_find_the_same(block_size: int) -> None:
    """Random inserts, look-ups and removals of ends: the same answers as comparing with everything that is stored."""
    for seed in range(10):
        rng = Random(seed)
        both = [Content(ChainLookup(block_size), block_size), Content(TreeLookup(block_size), block_size)]
        for _ in range(150):
            tokens = [rng.randrange(3) for _ in range(block_size * rng.randint(1, 6))]
            if rng.random() < 0.5:
                for each in both:
                    each.insert(*tokens)
            elif both[0].entries and rng.random() < 0.6:
                ends = [entry.key for entry in both[0].entries if not entry.num_children]
                key = rng.choice(ends)
                for each in both:
                    each.remove(next(entry for entry in each.entries if entry.key == key))
            found = [content.lookup.walk("", tokens, 99) for content in both]
            assert [entry.tokens for entry in found[0]] == [entry.tokens for entry in found[1]]
            stored = {_prefix(entry) for entry in both[0].entries}
            expected = 0
            while expected < len(tokens) and tuple(tokens[: expected + block_size]) in stored:
                expected += block_size
            assert len(found[0]) * block_size == expected
        for each in both:
            each.lookup.clear()
            assert each.find(*tokens) == []


def _prefix(entry: Entry | None) -> tuple[int, ...]:
    return _prefix(entry.parent) + entry.tokens if entry else ()


def test_only_ends_can_be_removed_from_the_tree() -> None:
    content = Content(TreeLookup(1))
    path = content.insert(1, 2, 3)
    with pytest.raises(AssertionError, match="only the end"):
        content.lookup.remove(path[1])
