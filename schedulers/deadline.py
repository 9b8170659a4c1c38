"""Requests with a deadline first, the most urgent of them in front; work without one fills what is left.

``earliest`` orders by deadline.  ``slack`` orders by the time to spare: deadline minus the time the request still
needs at the measured speed if it uses all of ``max_tokens``.  Work without a deadline may be displaced by requests
that have one, never the other way round, and those with deadlines do not displace each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from ..core.hookspecs import Register, hookimpl
from ..core.policy import PolicyContext, SchedulerView
from ..core.request import RequestView
from .keys.options import PosInt
from .keys.order import smallest_first
from .keys.ranks import RankedPolicy, RankOptions


@dataclass(frozen=True)
class Options(RankOptions):
    """Options of ``deadline``."""

    order: Literal["earliest", "slack"] = "earliest"
    look_ahead: PosInt = 1024  # slack looks at so many waiting requests, the earliest, in every step


def due(request: RequestView) -> float:
    """Clock value in seconds; infinity without a deadline."""
    deadline = request.deadline
    return inf if deadline is None else deadline


class Deadline(RankedPolicy):
    """Rank 0 has a deadline, rank 1 has none."""

    claims = {"deadline_order": True, "work_conserving": True}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)

    def rank(self, request: RequestView) -> int:
        return int(request.deadline is None)

    def places(self, running: Iterable[RequestView]) -> list[float]:
        return list(map(due, running))

    def waiting_key(self, request: RequestView, now: float) -> Any:
        return (due(request), request.num_preemptions == 0)

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView] | None:
        if self.options.order == "earliest":
            return None
        full_step, step = view.step_time(view.token_budget), view.step_time(max(1, view.num_running))

        def time_to_spare(request: RequestView) -> Any:
            tokens = request.num_tokens - view.cached_prefix_tokens(request)
            to_come = request.max_tokens - request.num_output_tokens
            needs = tokens / view.token_budget * full_step + to_come * step
            return (due(request) - needs, request.num_preemptions == 0)

        return smallest_first(view.waiting, time_to_spare, self.options.look_ahead)


@hookimpl
def register_schedulers(register: Register) -> None:
    register("deadline", Deadline, Options)
