"""Least attained service: a multi-level feedback queue for outputs whose length nobody knows.

A request belongs to the level of the tokens it holds: level 0 up to ``quantum``, then ``growth`` times more with each
level.  A long prompt starts at the level of its length instead of walking down to it (skip-join).  Short ones finish
at the front; long ones sink and may be displaced by those who got less.  Compose with ``ageing`` against starvation.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.policy import PolicyContext
from ..core.request import RequestView
from .keys.options import PosInt
from .keys.ranks import RankedPolicy, RankOptions


@dataclass(frozen=True)
class Options(RankOptions):
    """Options of ``mlfq``."""

    quantum: PosInt = 128  # tokens of a request at level 0
    growth: PosInt = 2  # each level holds so many times more; 1: the same
    levels: PosInt = 8  # everything longer is in the last one


class Mlfq(RankedPolicy):
    """Rank is the level."""

    claims = {"work_conserving": True}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        chosen, limit = self.options, 0
        self._limits: list[int] = []  # most tokens of each level but the last
        for level in range(chosen.levels - 1):
            limit += chosen.quantum * chosen.growth**level
            self._limits.append(limit)

    def rank(self, request: RequestView) -> int:
        return bisect_left(self._limits, request.num_tokens)

    def waiting_key(self, request: RequestView, now: float) -> Any:
        return (self.rank(request), request.num_preemptions == 0)


@hookimpl
def register_schedulers(register: Register) -> None:
    register("mlfq", Mlfq, Options)
