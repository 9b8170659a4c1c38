"""The more important request first; it may displace running work of a strictly lower class.

Which sign is more important is one fact, ``lower_first``.  Within a class: preempted requests, then arrival.  A class
is never starved by its equals, but a lower class waits as long as higher ones keep coming: the ``ageing`` wrapper
bounds that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.request import RequestView
from .keys.ranks import RankedPolicy, RankOptions


@dataclass(frozen=True)
class Options(RankOptions):
    """Options of ``priority``."""

    lower_first: bool = True  # priority 0 goes before priority 5; false: the other way round


class Priority(RankedPolicy):
    """Rank is the request's priority."""

    claims = {"priority_order": True, "work_conserving": True}

    def __init__(self, options: Options | None, context: Any) -> None:
        super().__init__(options or Options(), context)
        self._sign = 1 if self.options.lower_first else -1

    def rank(self, request: RequestView) -> int:
        return self._sign * request.priority

    def waiting_key(self, request: RequestView, now: float) -> Any:
        return (self.rank(request), request.num_preemptions == 0, request.arrival)


@hookimpl
def register_schedulers(register: Register) -> None:
    register("priority", Priority, Options)
