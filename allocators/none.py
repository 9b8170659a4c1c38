"""No KV cache at all: every step computes each request's whole context again.  The baseline of cache experiments.

Blocks are scratch for one step.  A granted row always starts at position 0 and carries all ids up to its end; the
scheduler goes on counting as if the tokens before it were kept, so its token budget does not cover the recomputed
ones.  A row whose first unknown id is still being sampled has to wait for it, whatever the depth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.messages import GrantedRow, Message, Row, StepGrant, StepPlan, StepResult
from ..core.policy import AllocatorContext
from ..core.request import RequestView
from .paged import slot_mapping


class NoneAllocator:
    """The actor.  ``free`` hands out from the left; a step's scratch returns on the right when it is booked."""

    api_level = 1

    def __init__(self, options: Any, context: AllocatorContext) -> None:
        self.num_blocks, self.block_size = context.num_blocks, context.block_size
        self.free: deque[int] = deque(range(context.num_blocks))
        self.ids: dict[str, list[int]] = {}  # known ids of the running requests
        self._scratch: dict[int, dict[str, tuple[int, ...]]] = {}  # step in flight -> rid -> blocks
        self._pending: dict[tuple[int, str], int] = {}  # (step in flight, rid) -> position of the id it samples
        self.num_recomputed = 0

    @property
    def free_blocks(self) -> int:
        return len(self.free)

    @property
    def fenced_blocks(self) -> int:
        """Blocks that return when the steps in flight are booked: all that are not free."""
        return self.num_blocks - len(self.free)

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        if isinstance(message, StepResult):
            self._book(message)
        if not isinstance(message, StepPlan):
            return ()
        for rid in (*message.released, *message.preempted):
            self.ids.pop(rid, None)
            self._pending = {key: position for key, position in self._pending.items() if key[1] != rid}
        for started in message.started:
            self.ids[started.rid] = list(started.token_ids)
        granted, denied = [], []
        for row in message.rows:
            made = self._grant(row, message.step)
            if made is None:
                denied.append(row.rid)
            else:
                granted.append(made)
        started_now = tuple(started for started in message.started if started.rid not in denied)
        step, padding = message.step, message.padding
        return (StepGrant(step, tuple(granted), started_now, message.released, (), tuple(denied), padding),)

    def _grant(self, row: Row, step: int) -> GrantedRow | None:
        stop = row.start + row.count
        ids, blocks = self.ids.get(row.rid, []), -(-stop // self.block_size)
        if blocks > len(self.free) or len(ids) < stop:
            return None
        table = tuple(self.free.popleft() for _ in range(blocks))
        self._scratch.setdefault(step, {})[row.rid] = table
        if row.samples:
            self._pending[step, row.rid] = stop
        self.num_recomputed += row.start
        slots = slot_mapping(table, 0, stop, self.block_size)
        return GrantedRow(row.rid, 0, stop, tuple(ids[:stop]), row.samples, table, slots)

    def _book(self, result: StepResult) -> None:
        for rid, token in zip(result.rids, result.token_ids, strict=True):
            position = self._pending.pop((result.step, rid), None)
            if position == len(self.ids.get(rid, ())):
                self.ids[rid].append(token)
        for table in self._scratch.pop(result.step, {}).values():
            self.free.extend(table)

    def draft(self) -> NoneDraft:
        return NoneDraft(self)

    def cached_prefix_tokens(self, request: RequestView) -> int:
        return 0

    def held_blocks(self, rid: str) -> int:
        return sum(len(tables.get(rid, ())) for tables in self._scratch.values())

    def check(self) -> None:
        scratch = [block for tables in self._scratch.values() for table in tables.values() for block in table]
        assert sorted([*self.free, *scratch]) == list(range(self.num_blocks)), "blocks lost or owned twice"

    def stats(self) -> dict[str, float]:
        return {
            "num_blocks": self.num_blocks,
            "free_blocks": len(self.free),
            "used_blocks": 0,
            "fenced_blocks": self.fenced_blocks,
            "recomputed_tokens": self.num_recomputed,
        }


class NoneDraft:
    """Counts scratch blocks of one step."""

    def __init__(self, allocator: NoneAllocator) -> None:
        self._allocator = allocator
        self._free, self._fenced = allocator.free_blocks, allocator.fenced_blocks
        self._known: dict[str, int] = {}  # newcomers: ids they bring
        self._taken: dict[str, int] = {}

    @property
    def free_blocks(self) -> int:
        return self._free

    @property
    def fenced_blocks(self) -> int:
        return self._fenced

    def release(self, rid: str) -> None:
        self._free += self._taken.pop(rid, 0)

    def match(self, request: RequestView) -> int:
        self._known[request.rid] = request.num_tokens
        return 0

    def unmatch(self, rid: str) -> None:
        self._known.pop(rid, None)

    def need(self, rid: str, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self._allocator.block_size) - self._taken.get(rid, 0))

    def extend(self, rid: str, num_tokens: int) -> int:
        """As promised; a row that needs an id still being sampled is short of one block, which its step gives back."""
        known = self._known.get(rid, len(self._allocator.ids.get(rid, ())))
        if num_tokens > known:
            return 1
        need = self.need(rid, num_tokens)
        if need > self._free:
            return need - self._free
        self._free -= need
        self._taken[rid] = self._taken.get(rid, 0) + need
        return 0


@hookimpl
def register_allocators(register: Register) -> None:
    register("none", NoneAllocator)
