"""An allocator written for plugin API level 1.  Frozen: if it stops working, level 1 has been broken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mainspring.core.messages import GrantedRow, Message, StepGrant, StepPlan, StepResult
from mainspring.core.policy import AllocatorContext
from mainspring.core.request import RequestView


class Frozen:
    """Blocks from a list; nothing is shared or kept; a release waits until all launched steps are booked."""

    api_level = 1

    def __init__(self, options: Any, context: AllocatorContext) -> None:
        self.num_blocks, self.block_size = context.num_blocks, context.block_size
        self.free = list(range(context.num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.fenced: list[list[int]] = []
        self.in_flight = 0

    @property
    def free_blocks(self) -> int:
        return len(self.free)

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        if isinstance(message, StepResult):
            self.in_flight -= 1
            if not self.in_flight:
                for blocks in self.fenced:
                    self.free += blocks
                self.fenced.clear()
            return ()
        if not isinstance(message, StepPlan):
            return ()
        for rid in (*message.released, *message.preempted):
            blocks = self.tables.pop(rid, [])
            if self.in_flight:
                self.fenced.append(blocks)
            else:
                self.free += blocks
        rows, denied = list[GrantedRow](), list[str]()
        for row in message.rows:
            table = self.tables.setdefault(row.rid, [])
            short = -(-(row.start + row.count) // self.block_size) - len(table)
            if short > len(self.free):
                denied.append(row.rid)
                continue
            table += [self.free.pop() for _ in range(max(0, short))]
            slots = tuple(
                table[at // self.block_size] * self.block_size + at % self.block_size
                for at in range(row.start, row.start + row.count)
            )
            rows.append(GrantedRow(row.rid, row.start, row.count, row.token_ids, row.samples, tuple(table), slots))
        self.in_flight += bool(rows)
        started = tuple(one for one in message.started if one.rid not in denied)
        grant = StepGrant(message.step, tuple(rows), started, message.released, (), tuple(denied), message.padding)
        return (grant,)

    def draft(self) -> Draft:
        return Draft(self)

    def cached_prefix_tokens(self, request: RequestView) -> int:
        return 0

    def held_blocks(self, rid: str) -> int:
        return len(self.tables.get(rid, ()))

    def check(self) -> None:
        owned = [block for table in self.tables.values() for block in table]
        fenced = [block for blocks in self.fenced for block in blocks]
        assert sorted(self.free + owned + fenced) == list(range(self.num_blocks))

    def stats(self) -> dict[str, float]:
        return {"free_blocks": len(self.free)}


class Draft:
    """Counts."""

    def __init__(self, allocator: Frozen) -> None:
        self.allocator = allocator
        self.free_blocks = len(allocator.free)
        self.fenced_blocks = sum(map(len, allocator.fenced))
        self.held = {rid: len(table) for rid, table in allocator.tables.items()}

    def release(self, rid: str) -> None:
        blocks = self.held.pop(rid, 0)
        old = min(blocks, self.allocator.held_blocks(rid)) if self.allocator.in_flight else 0
        self.fenced_blocks += old
        self.free_blocks += blocks - old

    def match(self, request: RequestView) -> int:
        return 0

    def unmatch(self, rid: str) -> None:
        self.held.pop(rid, None)

    def need(self, rid: str, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self.allocator.block_size) - self.held.get(rid, 0))

    def extend(self, rid: str, num_tokens: int) -> int:
        need = self.need(rid, num_tokens)
        if need > self.free_blocks:
            return need - self.free_blocks
        self.free_blocks -= need
        self.held[rid] = self.held.get(rid, 0) + need
        return 0
