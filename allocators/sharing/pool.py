"""Blocks by number: who uses how many, which are free, and which wait for a step in flight.

Every block is in exactly one state: in use (has users), fenced (no user, but a launched step names it), idle (no user,
content findable) or free.  Idle and free blocks can both be taken.
"""

from __future__ import annotations

from collections import deque

from .catalog import Catalog
from .entries import Entry


class Pool:
    """``free`` hands out from the left.  Blocks that come back without findable content go to the left, to be reused
    before anything cached is evicted."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free: deque[int] = deque(range(num_blocks))
        self.users = [0] * num_blocks
        self.named = [0] * num_blocks  # newest step known to name the block, brought up to date when a user leaves
        self.booked = 0
        self._fenced: dict[int, dict[int, None]] = {}  # step to be booked -> blocks, in order
        self.num_fenced = 0
        self.catalog: Catalog

    @property
    def num_available(self) -> int:
        """Blocks that can be taken now."""
        return len(self.free) + self.catalog.num_idle

    def take(self) -> int:
        """A block for one user, evicting if nothing is free.  One must be available."""
        assert self.num_available, "no block is available"
        block = self.free.popleft() if self.free else self.catalog.evict()
        self.users[block] = 1
        return block

    def hold(self, entry: Entry) -> None:
        """One more user of a findable block."""
        block = entry.block
        if not self.users[block]:
            if entry.idle:
                self.catalog.leave_idle(entry)
            else:
                del self._fenced[self.named[block]][block]
                self.num_fenced -= 1
        self.users[block] += 1

    def share(self, block: int) -> None:
        """One more user of a block in use."""
        assert self.users[block] > 0, f"block {block} has no user to share with"
        self.users[block] += 1

    def drop(self, block: int, named: int, touch: bool = True) -> None:
        """One user less; the newest step in which it named the block is ``named``."""
        assert self.users[block] > 0, f"block {block} is given back twice"
        self.users[block] -= 1
        self.named[block] = max(self.named[block], named)
        if not self.users[block]:
            self.settle(block, touch)

    def settle(self, block: int, touch: bool = True) -> None:
        """A block without users: behind its fence, or back at once."""
        if (step := self.named[block]) > self.booked:
            self._fenced.setdefault(step, {})[block] = None
            self.num_fenced += 1
        elif entry := self.catalog.of_block.get(block):
            self.catalog.enter_idle(entry, touch)
        else:
            self.free.appendleft(block)

    def vacate(self, entry: Entry, block: int) -> None:
        """The content of ``entry``, which has no user, moves to ``block``, which holds the same; its own comes back."""
        old = entry.block
        if entry.idle:
            self.catalog.leave_idle(entry)
            self.free.appendleft(old)
        self.named[block] = max(self.named[block], self.named[old])  # never less fenced than what follows it
        self.catalog.move(entry, block)

    def book(self, step: int) -> None:
        """``step`` and all before it are over: lift their fences."""
        self.booked = max(self.booked, step)
        for old in [named for named in self._fenced if named <= self.booked]:
            for block in self._fenced.pop(old):
                self.num_fenced -= 1
                self.settle(block)

    def check(self, expected_users: list[int]) -> None:
        """Raise AssertionError if the books do not balance; ``expected_users`` counted from the outside."""
        assert self.users == expected_users, "users miscounted"
        free = set(self.free)
        assert len(free) == len(self.free), "a block is free twice"
        fenced = {block for blocks in self._fenced.values() for block in blocks}
        assert len(fenced) == self.num_fenced, "fenced blocks miscounted"
        idle = {block for block, entry in self.catalog.of_block.items() if entry.idle}
        used = {block for block, count in enumerate(self.users) if count}
        for one, other in ((free, idle), (free, fenced), (idle, fenced), (free | idle | fenced, used)):
            assert not one & other, f"blocks in two states: {one & other}"
        assert len(free | idle | fenced | used) == self.num_blocks, "blocks lost"
        assert not any(block in self.catalog.of_block for block in free), "a free block is findable"
        self.catalog.check()
