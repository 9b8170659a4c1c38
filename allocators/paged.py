"""Fixed-size KV blocks from one pool: block tables, slot mapping, a free list; nothing is shared or kept.

A block of ``block_size`` tokens belongs to one request.  Waste is at most one block minus one token per request.
Blocks of a request that ends while a launched step names them are fenced until that step has been booked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.messages import GrantedRow, Message, StepGrant, StepPlan, StepResult
from ..core.policy import AllocatorContext
from ..core.request import RequestView

BlockTable = tuple[int, ...]


def slot_mapping(block_table: BlockTable, start: int, count: int, block_size: int) -> tuple[int, ...]:
    """Pool slot of each position in ``start .. start + count``: ``block * block_size + offset``."""
    if count == 1:
        return (block_table[start // block_size] * block_size + start % block_size,)
    stop, offset = start + count, start % block_size
    slots: list[int] = []
    for block in block_table[start // block_size : -(-stop // block_size)]:
        slots += range(block * block_size, (block + 1) * block_size)
    return tuple(slots[offset : offset + count])


class PagedAllocator:
    """The pool.  ``free`` hands out from the left; freed blocks return on the right in table order."""

    api_level = 1

    def __init__(self, options: Any, context: AllocatorContext) -> None:
        self.num_blocks, self.block_size = context.num_blocks, context.block_size
        self.free: deque[int] = deque(range(context.num_blocks))
        self.tables: dict[str, BlockTable] = {}
        self._newest: dict[str, int] = {}  # rid -> newest launched step that names it
        self._fenced: list[tuple[int, BlockTable]] = []  # (step to be booked, blocks)
        self._booked = 0
        self._lengths: dict[str, int] = {}

    @property
    def free_blocks(self) -> int:
        return len(self.free)

    @property
    def fenced_blocks(self) -> int:
        """Blocks that return when the steps in flight are booked."""
        return sum(len(blocks) for _, blocks in self._fenced)

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - len(self.free)

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        if isinstance(message, StepResult):
            self._book(message.step)
            return ()
        if not isinstance(message, StepPlan):
            return ()
        for rid in (*message.released, *message.preempted):
            self._release(rid)
        granted: list[GrantedRow] = []
        denied: list[str] = []
        size, step, tables, newest, lengths = self.block_size, message.step, self.tables, self._newest, self._lengths
        for row in message.rows:
            rid, start, count = row.rid, row.start, row.count
            stop, table = start + count, tables.get(rid, ())
            if stop > len(table) * size:
                short = -(-stop // size) - len(table)
                if short > len(self.free):
                    denied.append(rid)
                    continue
                tables[rid] = table = table + tuple([self.free.popleft() for _ in range(short)])
            lengths[rid], newest[rid] = stop, step
            slots = slot_mapping(table, start, count, size)
            granted.append(GrantedRow(rid, start, count, row.token_ids, row.samples, table, slots))
        return (
            StepGrant(
                message.step,
                tuple(granted),
                tuple(started for started in message.started if started.rid not in denied)
                if denied
                else message.started,
                message.released,
                denied=tuple(denied),
                padding=message.padding,
            ),
        )

    def _release(self, rid: str) -> None:
        """Give back what ``rid`` holds, once: an unknown or already released rid changes nothing."""
        blocks = self.tables.pop(rid, ())
        self._lengths.pop(rid, None)
        newest = self._newest.pop(rid, 0)
        if newest > self._booked:
            self._fenced.append((newest, blocks))
        else:
            self.free.extend(blocks)

    def _book(self, step: int) -> None:
        self._booked = max(self._booked, step)
        for _, blocks in (entry for entry in self._fenced if entry[0] <= step):
            self.free.extend(blocks)
        self._fenced = [entry for entry in self._fenced if entry[0] > step]

    def draft(self) -> PagedDraft:
        return PagedDraft(self)

    def cached_prefix_tokens(self, request: RequestView) -> int:
        return 0

    def held_blocks(self, rid: str) -> int:
        return len(self.tables.get(rid, ()))

    def returns_at_once(self, rid: str) -> bool:
        """True if no step in flight names ``rid``, so that its blocks are free as soon as it is released."""
        return self._newest.get(rid, 0) <= self._booked

    def check(self) -> None:
        owned = [block for table in self.tables.values() for block in table]
        fenced = [block for _, blocks in self._fenced for block in blocks]
        everything = sorted([*self.free, *owned, *fenced])
        assert everything == list(range(self.num_blocks)), "blocks lost or owned twice"
        for rid, table in self.tables.items():
            assert len(table) * self.block_size - self._lengths[rid] < self.block_size, f"{rid} wastes a block"

    def stats(self) -> dict[str, float]:
        used_tokens = sum(self._lengths.values())
        held = sum(len(table) for table in self.tables.values()) * self.block_size
        return {
            "num_blocks": self.num_blocks,
            "free_blocks": len(self.free),
            "used_blocks": self.used_blocks - self.fenced_blocks,
            "fenced_blocks": self.fenced_blocks,
            "used_tokens": used_tokens,
            "wasted_slots": held - used_tokens,
        }


class PagedDraft:
    """Counts only: what one plan would take and give back."""

    def __init__(self, allocator: PagedAllocator) -> None:
        self._allocator, self._size, self._tables = allocator, allocator.block_size, allocator.tables
        self._held: dict[str, int] = {}
        self._free = allocator.free_blocks
        self._fenced = allocator.fenced_blocks

    @property
    def free_blocks(self) -> int:
        return self._free

    @property
    def fenced_blocks(self) -> int:
        return self._fenced

    def _holds(self, rid: str) -> int:
        held = self._held.get(rid)
        return self._allocator.held_blocks(rid) if held is None else held

    def release(self, rid: str) -> None:
        taken_now = self._holds(rid) - (held := self._allocator.held_blocks(rid))
        if self._allocator.returns_at_once(rid):
            self._free += held
        else:
            self._fenced += held
        self._free += taken_now
        self._held[rid] = 0

    def match(self, request: RequestView) -> int:
        return 0

    def unmatch(self, rid: str) -> None:
        """Nothing was pinned."""

    def need(self, rid: str, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self._allocator.block_size) - self._holds(rid))

    def extend(self, rid: str, num_tokens: int) -> int:
        held = self._held.get(rid)
        if held is None:
            held = len(self._tables.get(rid, ()))
        if num_tokens <= held * self._size:
            return 0
        need = -(-num_tokens // self._size) - held
        if need > self._free:
            return need - self._free
        self._free -= need
        self._held[rid] = held + need
        return 0


@hookimpl
def register_allocators(register: Register) -> None:
    register("paged", PagedAllocator)
