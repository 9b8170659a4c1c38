"""From intervals and checks to a verdict, which is refused when a check fails."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

from .statistics import Interval


class Call(enum.StrEnum):
    """What can be said of one metric of one arm against the baseline."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "no difference shown"
    REFUSED = "refused"


class Guarded(enum.StrEnum):
    """What can be said of a metric that must not get worse by more than its margin."""

    KEPT = "kept"
    BROKEN = "broken"
    OPEN = "not shown"


class Verdict(NamedTuple):
    """``why`` is one sentence for the reader."""

    call: Call
    why: str


def judge(
    effect: Interval | None,
    floor: float | None,
    lower_is_better: bool,
    failed_checks: Sequence[str],
    p: float | None = None,
    alpha: float = 0.05,
) -> Verdict:
    """The verdict on one metric.

    ``floor`` is the half-width of the A/A interval between runs of the baseline with different seeds, on the scale of
    ``effect``; ``p`` replaces the effect's own where several metrics were looked at.
    """
    if failed_checks:
        return Verdict(Call.REFUSED, "; ".join(failed_checks))
    if effect is None:
        return Verdict(Call.REFUSED, "no finite value in every pair")
    if not effect.excludes_zero:
        return Verdict(Call.SAME, "the interval holds 0")
    if p is not None and p >= alpha:
        return Verdict(Call.SAME, f"p = {p:.3f} after correction for the number of metrics")
    if floor is not None and abs(effect.mean) < floor:
        size = f"{math.expm1(floor):.1%}" if effect.scale == "ratio" else f"{floor:.3g}"
        return Verdict(Call.SAME, f"the interval leaves out 0, but other seeds alone make {size}")
    better = (effect.mean < 0) == lower_is_better
    return Verdict(Call.BETTER if better else Call.WORSE, "the interval leaves out 0 and the effect is above the floor")


def guarded(effect: Interval | None, margin: float, lower_is_better: bool) -> Guarded:
    """Whether a guard holds: "no worse" needs the whole interval inside the margin, ``margin`` 0.05 meaning 5 %.

    On the scale of differences the margin is in the metric's own units.
    """
    if effect is None:
        return Guarded.OPEN
    limit = margin if effect.scale == "difference" else math.log1p(margin)
    low, high = (effect.low, effect.high) if lower_is_better else (-effect.high, -effect.low)
    if high <= limit:
        return Guarded.KEPT
    return Guarded.BROKEN if low > limit else Guarded.OPEN
