"""Dynamic batching: requests are collected for a short while, then run as one group until all have finished.

A group starts when it is full (``max_batch`` requests or ``max_tokens`` prompt tokens) or when its first member has
waited ``max_wait_s``.  Finished members leave at once and nothing is padded, but newcomers wait for the next group.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.hookspecs import Register, hookimpl
from ..core.policy import Decision, PolicyContext, SchedulerView
from ..core.request import RequestView
from .keys.options import NonNegFloat, PosInt
from .static_batch import StaticBatch


@dataclass(frozen=True)
class Options:
    """Options of ``dynamic_batch``."""

    max_batch: PosInt = 32  # requests in a group
    max_tokens: PosInt = 4096  # prompt tokens that make a group full; one request may have more
    max_wait_s: NonNegFloat = 0.05  # seconds that the first one waits for others


class DynamicBatch(StaticBatch):
    """A window before each group."""

    padded = False

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)

    def begin(self, view: SchedulerView) -> Decision:
        due = self._due(view)
        if due is not None and due > view.now:
            return Decision((), wake_at=due)
        return super().begin(view)

    def _due(self, view: SchedulerView) -> float | None:
        """Clock value (seconds) at which the next group starts: now if it is full, None if nobody waits."""
        tokens, first = 0, None
        for count, request in enumerate((one for one in view.waiting if one.num_remaining_tokens), start=1):
            first = request.arrival if first is None else min(first, request.arrival)
            tokens += request.num_tokens
            if count >= self.options.max_batch or tokens >= self.options.max_tokens:
                return view.now
        return None if first is None else first + float(self.options.max_wait_s)

    def group(self, view: SchedulerView) -> list[RequestView]:
        """As many as fit, up to ``max_tokens`` prompt tokens."""
        chosen, tokens = super().group(view), 0
        for index, request in enumerate(chosen):
            tokens += request.num_tokens
            if index and tokens > self.options.max_tokens:
                return chosen[:index]
        return chosen


@hookimpl
def register_schedulers(register: Register) -> None:
    register("dynamic_batch", DynamicBatch, Options)
