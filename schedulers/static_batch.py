"""Static batching, the textbook baseline: a fixed group starts together, is padded, and waits for its longest member.

Prompts are padded to the longest of the group, and whoever has finished keeps its place as a dummy row until the last
one is done: both are charged as padding.  Room for the final lengths is reserved, so nobody is preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.policy import Decision, PolicyContext, SchedulerPolicy, SchedulerView
from ..core.request import RequestView, Status
from .keys.admission import final_length
from .keys.options import PosInt


@dataclass(frozen=True)
class Options:
    """Options of ``static_batch``."""

    max_batch: PosInt = 8  # requests in a group


class StaticBatch(SchedulerPolicy):
    """Plans whole steps.  Its state is the group that runs now."""

    claims = {"arrival_order": True}
    padded = True
    options: Any

    def __init__(self, options: Any, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        self._size = 0  # members the group started with
        self._longest = 0  # tokens of its longest prompt
        self._late: set[str] = set()  # members whose prompt has had no tokens yet

    def schedule(self, view: SchedulerView) -> Decision | None:
        running = view.running
        if running:
            decision = self._step([*running, *self._not_started(view)], view)
            if decision.rows or view.num_in_flight:
                return decision
        return self.begin(view) if view.admitting else Decision(())

    def begin(self, view: SchedulerView) -> Decision:
        """The first step of the next group: nobody runs, or all who do are paused."""
        group = self.group(view)
        self._size, self._late = len(group), {request.rid for request in group}
        self._longest = max((request.num_tokens for request in group), default=0)
        return self._step(group, view)

    def group(self, view: SchedulerView) -> list[RequestView]:
        """The next group: first come, as many as fit with their final lengths, at least one."""
        chosen: list[RequestView] = []
        left, slots = view.free_blocks, view.max_running - view.num_running
        for request in view.waiting:
            left -= -(-final_length(request, view.num_blocks * view.block_size) // view.block_size)
            if len(chosen) == min(self.options.max_batch, slots) or (chosen and left < 0):
                break
            if request.num_remaining_tokens:
                chosen.append(request)
        return chosen

    def _not_started(self, view: SchedulerView) -> list[RequestView]:
        """Members that still wait for their first tokens, because the budget did not hold all prompts at once."""
        found = [request for request in view.waiting if request.rid in self._late] if self._late else []
        self._late = {request.rid for request in found}
        return found

    def _step(self, members: Sequence[RequestView], view: SchedulerView) -> Decision:
        """All prompts first, over several steps if need be, then one token each."""
        prompts = [one for one in members if one.status is not Status.RUNNING or one.num_remaining_tokens > 1]
        rows: list[tuple[str, int]] = []
        padding: list[int] = []
        budget = view.token_budget
        for request in prompts or members:
            if count := min(request.num_remaining_tokens, budget):
                rows.append((request.rid, count))
                budget -= count
                if prompts and count == request.num_remaining_tokens:
                    padding.append(self._longest - request.num_tokens)
        if not prompts:
            padding = [1] * (self._size - len(rows))
        return Decision(rows, padding=[count for count in padding if self.padded and count > 0])


@hookimpl
def register_schedulers(register: Register) -> None:
    register("static_batch", StaticBatch, Options)
