"""The what-if overlay of a sharing allocator for planning one step.

It counts exactly what ``handle(StepPlan)`` will do: releases first, then the hits of all newcomers, then room.  Since
hits are pinned before anything is taken there, only the numbers have to fit, not which block is evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.request import RequestView
from .entries import Entry, Tokens

if TYPE_CHECKING:
    from .allocator import SharingAllocator

#: Stands for the step being planned: later than any that is booked.
NOT_YET = 2**62


class Planned:
    """A block that a row of this plan will fill, so that later rows of the same step may use it."""

    __slots__ = ("rid",)

    def __init__(self, rid: str) -> None:
        self.rid = rid


class Claim:
    """What one request holds and would take."""

    __slots__ = ("copied", "ids", "num_matched", "num_taken", "path", "pinned", "salt", "table")

    def __init__(self, table: tuple[int, ...], path: list[Entry | Planned], ids: tuple[int, ...], salt: str) -> None:
        self.table, self.path, self.ids, self.salt = table, path, ids, salt
        self.pinned: list[int] = []
        self.num_matched = self.num_taken = 0
        self.copied: set[int] = set()


class SharingDraft:
    """Implements ``core.policy.AllocationDraft``."""

    def __init__(self, allocator: SharingAllocator) -> None:
        self._allocator, self._pool, self._size = allocator, allocator.pool, allocator.block_size
        self._free, self._fenced = allocator.free_blocks, allocator.pool.num_fenced
        self._users: dict[int, int] = {}  # block -> users, where they differ from the pool's
        self._named: dict[int, int] = {}
        self._claims: dict[str, Claim] = {}
        self._extended: list[tuple[str, int]] = []  # not yet looked at for blocks that they fill
        self._planned: dict[tuple[Entry | Planned | str, Tokens], Planned] = {}

    @property
    def free_blocks(self) -> int:
        return self._free

    @property
    def fenced_blocks(self) -> int:
        return self._fenced

    # --- users of blocks ---------------------------------------------------------------------------------------------

    def _num_users(self, block: int) -> int:
        return self._users[block] if block in self._users else self._pool.users[block]

    def _is_fenced(self, block: int) -> bool:
        return max(self._named.get(block, 0), self._pool.named[block]) > self._pool.booked

    def _drop(self, block: int, named: int = 0) -> None:
        left = self._users[block] = self._num_users(block) - 1
        if named:
            self._named[block] = max(self._named.get(block, 0), named)
        if not left:
            if self._is_fenced(block):
                self._fenced += 1
            else:
                self._free += 1

    def _hold(self, block: int) -> bool:
        """One more user; False if that needs a free block and none is left."""
        users = self._num_users(block)
        if not users:
            if self._is_fenced(block):
                self._fenced -= 1
            elif self._free:
                self._free -= 1
            else:
                return False
        self._users[block] = users + 1
        return True

    # --- requests ----------------------------------------------------------------------------------------------------

    def _claim(self, rid: str) -> Claim:
        claim = self._claims.get(rid)
        if claim is None:
            sequence = self._allocator.sequences.get(rid)
            table = sequence.table if sequence else ()
            claim = self._claims[rid] = Claim(table, [], (), "")
        return claim

    def release(self, rid: str) -> None:
        claim = self._claim(rid)
        sequence = self._allocator.sequences.get(rid)
        for index, block in enumerate(claim.table):
            if index not in claim.copied:
                self._drop(block, sequence.newest if sequence else 0)
        for block in claim.pinned:
            self._drop(block)
        self._free += claim.num_taken
        self._planned = {key: block for key, block in self._planned.items() if block.rid != rid}
        self._extended = [item for item in self._extended if item[0] != rid]
        self._claims[rid] = Claim((), [], (), "")

    def match(self, request: RequestView) -> int:
        rid, ids = request.rid, request.known_ids()
        sequence = self._allocator.sequences.get(rid)
        if sequence is not None and sequence.forked:
            return sequence.computed
        claim = self._claims[rid] = Claim((), [], ids, request.cache_salt)
        found = self._allocator.find(claim.salt, ids) if request.read_cache else []
        for entry in found:
            if not self._hold(entry.block):
                break
            claim.pinned.append(entry.block)
            claim.path.append(entry)
        held = self._allocator.host.num_held(rid, len(claim.path), len(ids))  # in blocks that are yet to be taken
        if not held and request.read_cache and len(claim.path) == len(found):
            self._follow_planned(claim)
        claim.num_matched = len(claim.path)
        return held or claim.num_matched * self._size

    def _follow_planned(self, claim: Claim) -> None:
        """Go on through blocks that earlier rows of this step fill."""
        self._settle()
        limit = (len(claim.ids) - 1) // self._size
        while self._planned and len(claim.path) < limit:
            planned = self._planned.get(self._key(claim, len(claim.path)))
            if planned is None:
                return
            claim.path.append(planned)

    def unmatch(self, rid: str) -> None:
        claim = self._claims.pop(rid, None)
        for block in claim.pinned if claim else ():
            self._drop(block)

    def _key(self, claim: Claim, index: int) -> tuple[Entry | Planned | str, Tokens]:
        start = index * self._size
        return claim.path[-1] if claim.path else claim.salt, claim.ids[start : start + self._size]

    def _settle(self) -> None:
        """Note the blocks that the rows so far will make findable, in row order."""
        for rid, num_tokens in self._extended:
            claim = self._claim(rid)
            sequence = self._allocator.sequences.get(rid)
            if sequence is not None and claim.table:
                full = min(num_tokens, len(sequence.ids)) // self._size
                if full <= len(sequence.path) or not sequence.findable:
                    continue
                claim.path, claim.ids, claim.salt = [*sequence.path], tuple(sequence.ids), sequence.salt
            for index in range(len(claim.path), min(num_tokens, len(claim.ids)) // self._size):
                key = self._key(claim, index)
                last = claim.path[-1] if claim.path else None
                known = None
                if not isinstance(last, Planned):
                    known = self._allocator.catalog.lookup.child(last, claim.salt, key[1])
                claim.path.append(known or self._planned.setdefault(key, Planned(rid)))
        self._extended.clear()

    def _wanted(self, rid: str, num_tokens: int) -> tuple[int, list[int]]:
        """Blocks to take, and which of the request's own are shared and would be written, so that they are copied."""
        claim, size = self._claim(rid), self._size
        blocks = -(-num_tokens // size)
        shared: list[int] = []
        if claim.table and (sequence := self._allocator.sequences[rid]).branched:
            written = range(sequence.computed // size, min(len(claim.table), blocks))
            shared = [
                index
                for index in written
                if index not in claim.copied
                and (self._num_users(claim.table[index]) > 1 or self._allocator.is_foreign(sequence, index))
            ]
        held = len(claim.table) + claim.num_matched + claim.num_taken - len(claim.copied)
        return max(0, blocks - held) + len(shared), shared

    def need(self, rid: str, num_tokens: int) -> int:
        return self._wanted(rid, num_tokens)[0]

    def extend(self, rid: str, num_tokens: int) -> int:
        if rid not in self._claims:
            sequence = self._allocator.sequences.get(rid)
            if sequence is not None and not sequence.branched and num_tokens <= len(sequence.table) * self._size:
                if num_tokens // self._size > len(sequence.path):
                    self._extended.append((rid, num_tokens))
                return 0
        need, shared = self._wanted(rid, num_tokens)
        if need > self._free:
            return need - self._free
        claim = self._claims[rid]
        self._free -= need
        claim.num_taken += need
        for index in shared:
            self._drop(claim.table[index], NOT_YET)
        claim.copied.update(shared)
        self._extended.append((rid, num_tokens))
        return 0
