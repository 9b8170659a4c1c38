"""One unbroken stretch of blocks per request, as long as it may ever need: the baseline that wastes.

This is how caches were laid out before paging: room for ``prompt + max_tokens`` is set aside at the start, first fit.
Most of it is never written, and free blocks in small holes help nobody.  Use it to measure what paging saves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..core.hookspecs import Register, hookimpl
from ..core.messages import GrantedRow, Message, Row, Started, StepGrant, StepPlan, StepResult
from ..core.policy import AllocatorContext
from ..core.request import RequestView
from .paged import slot_mapping


class Stretch(NamedTuple):
    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length


class Holes:
    """The free stretches, in order, never touching each other."""

    def __init__(self, holes: Iterable[Stretch]) -> None:
        self.free = list(holes)

    @property
    def largest(self) -> int:
        return max((hole.length for hole in self.free), default=0)

    @property
    def total(self) -> int:
        return sum(hole.length for hole in self.free)

    def take(self, length: int) -> Stretch | None:
        """The first ``length`` blocks of the first hole that is long enough."""
        for index, hole in enumerate(self.free):
            if hole.length >= length:
                rest = Stretch(hole.start + length, hole.length - length)
                self.free[index : index + 1] = [rest] if rest.length else []
                return Stretch(hole.start, length)
        return None

    def give_back(self, stretch: Stretch) -> None:
        merged: list[Stretch] = []
        for hole in sorted([*self.free, stretch]):
            if merged and merged[-1].stop == hole.start:
                merged[-1] = Stretch(merged[-1].start, merged[-1].length + hole.length)
            else:
                merged.append(hole)
        self.free = merged


class ContiguousAllocator:
    """The actor.  ``free_blocks`` counts every free block; its draft counts only the largest hole."""

    api_level = 1

    def __init__(self, options: Any, context: AllocatorContext) -> None:
        self.num_blocks, self.block_size = context.num_blocks, context.block_size
        self.holes = Holes([Stretch(0, context.num_blocks)])
        self.stretches: dict[str, Stretch] = {}
        self._lengths: dict[str, int] = {}
        self._newest: dict[str, int] = {}  # rid -> newest launched step that names it
        self._fenced: list[tuple[int, Stretch]] = []  # (step to be booked, stretch)
        self._booked = 0

    @property
    def free_blocks(self) -> int:
        return self.holes.total

    @property
    def fenced_blocks(self) -> int:
        """Blocks that return when the steps in flight are booked."""
        return sum(stretch.length for _, stretch in self._fenced)

    def blocks_for(self, num_prompt_tokens: int, num_tokens: int, max_tokens: int) -> int:
        """Length of the stretch of a request that knows ``num_tokens``.  One that has outgrown its declared limit
        gets as much again."""
        limit = num_prompt_tokens + max_tokens
        most = limit if num_tokens < limit else num_tokens + max_tokens
        return min(self.num_blocks, -(-most // self.block_size))

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        if isinstance(message, StepResult):
            self._book(message.step)
        if not isinstance(message, StepPlan):
            return ()
        for rid in (*message.released, *message.preempted):
            self._release(rid)
        starts = {started.rid: started for started in message.started}
        granted, denied = [], []
        for row in message.rows:
            if self._take(row, starts.get(row.rid)):
                granted.append(self._grant(row, message.step))
            else:
                denied.append(row.rid)
        started = tuple(each for each in message.started if each.rid not in denied)
        step, padding = message.step, message.padding
        return (StepGrant(step, tuple(granted), started, message.released, (), tuple(denied), padding),)

    def _take(self, row: Row, started: Started | None) -> bool:
        stretch = self.stretches.get(row.rid)
        if stretch is None:
            length = -(-(row.start + row.count) // self.block_size)
            if started is not None:
                known = len(started.token_ids)
                length = self.blocks_for(started.num_prompt_tokens, known, started.sampling.max_tokens)
            stretch = self.holes.take(length)
            if stretch is None:
                return False
            self.stretches[row.rid] = stretch
        return row.start + row.count <= stretch.length * self.block_size

    def _grant(self, row: Row, step: int) -> GrantedRow:
        stretch = self.stretches[row.rid]
        table = tuple(range(stretch.start, stretch.stop))
        self._lengths[row.rid], self._newest[row.rid] = row.start + row.count, step
        slots = slot_mapping(table, row.start, row.count, self.block_size)
        return GrantedRow(row.rid, row.start, row.count, row.token_ids, row.samples, table, slots)

    def _release(self, rid: str) -> None:
        """Give back what ``rid`` holds, once: an unknown or already released rid changes nothing."""
        stretch, newest = self.stretches.pop(rid, None), self._newest.pop(rid, 0)
        self._lengths.pop(rid, None)
        if stretch is None:
            return
        if newest > self._booked:
            self._fenced.append((newest, stretch))
        else:
            self.holes.give_back(stretch)

    def _book(self, step: int) -> None:
        self._booked = max(self._booked, step)
        for _, stretch in (entry for entry in self._fenced if entry[0] <= step):
            self.holes.give_back(stretch)
        self._fenced = [entry for entry in self._fenced if entry[0] > step]

    def draft(self) -> ContiguousDraft:
        return ContiguousDraft(self)

    def cached_prefix_tokens(self, request: RequestView) -> int:
        return 0

    def held_blocks(self, rid: str) -> int:
        stretch = self.stretches.get(rid)
        return stretch.length if stretch else 0

    def returns_at_once(self, rid: str) -> bool:
        """True if no step in flight names ``rid``."""
        return self._newest.get(rid, 0) <= self._booked

    def check(self) -> None:
        stretches = [*self.holes.free, *self.stretches.values(), *(stretch for _, stretch in self._fenced)]
        position = 0
        for stretch in sorted(stretches):
            assert stretch.start == position and stretch.length > 0, "blocks lost or owned twice"
            position = stretch.stop
        assert position == self.num_blocks, "blocks lost"

    def stats(self) -> dict[str, float]:
        used_tokens = sum(self._lengths.values())
        held = sum(stretch.length for stretch in self.stretches.values())
        return {
            "num_blocks": self.num_blocks,
            "free_blocks": self.free_blocks,
            "largest_hole": self.holes.largest,
            "used_blocks": held,
            "fenced_blocks": self.fenced_blocks,
            "used_tokens": used_tokens,
            "wasted_slots": held * self.block_size - used_tokens,
        }


class ContiguousDraft:
    """Plays first fit on a copy of the holes.  ``free_blocks`` is the largest of them: no request can get more."""

    def __init__(self, allocator: ContiguousAllocator) -> None:
        self._allocator = allocator
        self._holes = Holes(allocator.holes.free)
        self._fenced = allocator.fenced_blocks
        self._wanted: dict[str, int] = {}  # newcomers
        self._taken: dict[str, Stretch] = {}
        self._gone: set[str] = set()

    @property
    def free_blocks(self) -> int:
        return self._holes.largest

    @property
    def fenced_blocks(self) -> int:
        return self._fenced

    def release(self, rid: str) -> None:
        if (taken := self._taken.pop(rid, None)) is not None:
            self._holes.give_back(taken)
        held = self._allocator.stretches.get(rid)
        if held is not None and rid not in self._gone:
            if self._allocator.returns_at_once(rid):
                self._holes.give_back(held)
            else:
                self._fenced += held.length
        self._gone.add(rid)

    def match(self, request: RequestView) -> int:
        length = self._allocator.blocks_for(request.num_prompt_tokens, request.num_tokens, request.max_tokens)
        self._wanted[request.rid] = length
        return 0

    def unmatch(self, rid: str) -> None:
        self._wanted.pop(rid, None)

    def _held(self, rid: str) -> int:
        if rid in self._taken:
            return self._taken[rid].length
        return 0 if rid in self._gone else self._allocator.held_blocks(rid)

    def need(self, rid: str, num_tokens: int) -> int:
        blocks = -(-num_tokens // self._allocator.block_size)
        held = self._held(rid)
        return max(0, blocks - held) if held else max(blocks, self._wanted.get(rid, 0))

    def extend(self, rid: str, num_tokens: int) -> int:
        need = self.need(rid, num_tokens)
        if not need:
            return 0
        stretch = None if self._held(rid) else self._holes.take(need)
        if stretch is None:  # a stretch in use never grows
            return need if self._held(rid) else need - self._holes.largest
        self._taken[rid] = stretch
        return 0


@hookimpl
def register_allocators(register: Register) -> None:
    register("contiguous", ContiguousAllocator)
