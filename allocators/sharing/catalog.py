"""The catalogue of cached blocks: what is findable, what is idle, and what is evicted next.

An entry is idle when its block has no user and no fence.  Users of a block also use every block before it, so idle
entries always hang together at the ends of chains, and an idle end can always be found to evict.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from typing import Any

from .entries import Entry, Lookup, Tokens
from .events import CacheEvent, Cleared, Removed, Stored
from .eviction import EvictionKey

#: Stale heap entries tolerated beyond twice the live ones before the heap is rebuilt.
HEAP_SLACK = 64
#: (leased, eviction key, -depth, key, version, entry): the smallest goes first.
Candidate = tuple[bool, Any, int, int, int, Entry]


class Catalog:
    """Entries over a ``Lookup``.  ``on_removed(entry)`` runs for each idle entry that leaves other than by eviction."""

    def __init__(
        self, lookup: Lookup, key: EvictionKey, max_idle_s: float, on_removed: Callable[[Entry], None]
    ) -> None:
        self.lookup, self._key, self._max_idle_s, self._on_removed = lookup, key, max_idle_s, on_removed
        self.observers: list[Callable[[CacheEvent], None]] = []
        self.of_block: dict[int, Entry] = {}
        self.num_idle = 0
        self.num_evicted = self.num_expired = 0
        self.now = 0.0
        self._tick = self._next_key = 0
        self._heap: list[Candidate] = []  # stale items included
        self._idle_since: list[tuple[float, int, int, int, Entry]] = []  # (clock, -depth, key, epoch, entry)
        self._leases: list[tuple[float, int, Entry]] = []

    def tick(self) -> None:
        """A new moment: what becomes idle until the next tick counts as used at the same time."""
        self._tick += 1

    # --- content -----------------------------------------------------------------------------------------------------

    def add(self, parent: Entry | None, salt: str, tokens: Tokens, block: int) -> Entry:
        """Make a block in use findable."""
        assert block not in self.of_block, f"block {block} holds {self.of_block[block]} already"
        self._next_key += 1
        entry = Entry(self._next_key, parent, salt, tokens, block, self._tick)
        if parent is not None:
            parent.num_children += 1
        self.lookup.insert(entry)
        self.of_block[block] = entry
        self._publish(Stored(entry.key, parent.key if parent else None, tokens, salt))
        return entry

    def move(self, entry: Entry, block: int) -> None:
        """The same content now stands in ``block``."""
        del self.of_block[entry.block]
        entry.block = block
        self.of_block[block] = entry

    def forget(self, entry: Entry) -> list[Entry]:
        """Remove ``entry`` and all that follows it, used or not; returns them, ends first."""
        below = [other for other in self.of_block.values() if self._follows(other, entry)]
        below.sort(key=lambda other: -other.depth)
        for other in below:
            self._remove(other)
            if other.idle:
                self.leave_idle(other)
                self._on_removed(other)
        return below

    @staticmethod
    def _follows(entry: Entry | None, root: Entry) -> bool:
        while entry is not None and entry.depth > root.depth:
            entry = entry.parent
        return entry is root

    def clear(self) -> None:
        """Forget everything at once."""
        for entry in self.of_block.values():
            entry.alive = False
            if entry.idle:
                self.leave_idle(entry)
                self._on_removed(entry)
        self.of_block.clear()
        self.lookup.clear()
        self._publish(Cleared())

    def _remove(self, entry: Entry) -> None:
        self.lookup.remove(entry)
        del self.of_block[entry.block]
        entry.alive = False
        if (parent := entry.parent) is not None:
            parent.num_children -= 1
            if parent.idle and not parent.num_children:
                self._offer(parent)
        self._publish(Removed(entry.key))

    def _publish(self, event: CacheEvent) -> None:
        for observer in self.observers:
            observer(event)

    # --- idle entries ------------------------------------------------------------------------------------------------

    def enter_idle(self, entry: Entry, touch: bool = True) -> None:
        """Its last user left; ``touch`` False if it was never really used."""
        if touch:
            entry.used = self._tick
        entry.idle = True
        entry.epoch += 1
        self.num_idle += 1
        if not entry.num_children:
            self._offer(entry)
        if self._max_idle_s:
            heapq.heappush(self._idle_since, (self.now, -entry.depth, entry.key, entry.epoch, entry))
            if len(self._idle_since) > 2 * self.num_idle + HEAP_SLACK:
                self._idle_since = [item for item in self._idle_since if self._still_idle(item[-1], item[-2])]
                heapq.heapify(self._idle_since)

    def leave_idle(self, entry: Entry) -> None:
        """It has a user again."""
        entry.idle = False
        entry.version += 1
        self.num_idle -= 1

    def evict(self) -> int:
        """Take the block of the idle end that the eviction key puts first.  There must be an idle entry."""
        while True:
            item = heapq.heappop(self._heap)
            if self._current(item):
                break
        entry = item[-1]
        self._remove(entry)
        self.leave_idle(entry)
        self.num_evicted += 1
        return entry.block

    def lease(self, path: list[Entry], until: float) -> None:
        """Keep ``path``, a whole prefix, behind everything without a lease until the clock value ``until``."""
        for entry in path:
            if until > entry.lease_until:
                entry.lease_until = until
                heapq.heappush(self._leases, (until, entry.key, entry))
                if entry.idle and not entry.num_children:
                    self._offer(entry)
        if len(self._leases) > 2 * len(self.of_block) + HEAP_SLACK:
            self._leases = [item for item in self._leases if item[2].alive and item[2].lease_until == item[0]]
            heapq.heapify(self._leases)

    def advance(self, now: float) -> None:
        """The clock is at ``now``: end leases."""
        self.now = max(self.now, now)
        while self._leases and self._leases[0][0] <= self.now:
            until, _, entry = heapq.heappop(self._leases)
            if entry.alive and entry.lease_until == until and entry.idle and not entry.num_children:
                self._offer(entry)

    def expire(self) -> None:
        """Drop what has been idle for ``max_idle_s`` and has no lease."""
        while self._idle_since and self._idle_since[0][0] + self._max_idle_s <= self.now:
            _, depth, key, epoch, entry = heapq.heappop(self._idle_since)
            if not self._still_idle(entry, epoch):
                continue
            if entry.lease_until > self.now:
                heapq.heappush(self._idle_since, (entry.lease_until - self._max_idle_s, depth, key, epoch, entry))
                continue
            self._remove(entry)
            self.leave_idle(entry)
            self.num_expired += 1
            self._on_removed(entry)

    def _offer(self, entry: Entry) -> None:
        """An idle end of a chain: a candidate for eviction."""
        entry.version += 1
        leased = entry.lease_until > self.now
        heapq.heappush(self._heap, (leased, self._key(entry), -entry.depth, entry.key, entry.version, entry))
        if len(self._heap) > 2 * self.num_idle + HEAP_SLACK:
            self._heap = [item for item in self._heap if self._current(item)]
            heapq.heapify(self._heap)

    @staticmethod
    def _still_idle(entry: Entry, epoch: int) -> bool:
        return entry.alive and entry.idle and entry.epoch == epoch

    @staticmethod
    def _current(item: Candidate) -> bool:
        entry = item[-1]
        return entry.alive and entry.idle and not entry.num_children and entry.version == item[-2]

    def check(self) -> None:
        """Raise AssertionError if the catalogue contradicts itself."""
        self.lookup.check()
        entries = self.of_block.values()
        children = Counter(entry.parent.key for entry in entries if entry.parent)
        candidates = {item[-1].key for item in self._heap if self._current(item)}
        for block, entry in self.of_block.items():
            assert entry.alive and entry.block == block, entry
            assert entry.num_children == children[entry.key], f"{entry} miscounts its children"
            assert self.lookup.child(entry.parent, entry.salt, entry.tokens) is entry, f"{entry} cannot be found"
            assert entry.parent is None or (entry.parent.alive and entry.idle >= entry.parent.idle), (
                f"{entry} hangs loose"
            )
            assert (entry.key in candidates) == (entry.idle and not entry.num_children), entry
        assert self.num_idle == sum(entry.idle for entry in entries)
