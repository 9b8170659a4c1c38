"""The numbers of an A/B.  The unit of replication is the run: requests that share a queue prove nothing one by one.

A metric becomes one number per run, and a pair of runs one log ratio (other arm / baseline).  Interval and test are
over these.  A metric that is 0 somewhere has no ratios: then the differences are compared, and the scale says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple

from .student import quantile, two_sided

#: Up to so many pairs all sign flips are tried (2 ** pairs).
MOST_FLIPS = 14
#: Rounding alone: effects that small are none.
_NOTHING = 1e-12

Scale = Literal["ratio", "difference"]


class Interval(NamedTuple):
    """A mean over pairs with its two-sided t interval, and the p value of "the mean is 0".  In log ratios or units."""

    scale: Scale
    values: tuple[float, ...]
    mean: float
    low: float
    high: float
    p: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def excludes_zero(self) -> bool:
        return self.low > _NOTHING or self.high < -_NOTHING

    def shown(self, value: float) -> float:
        """``value`` as a reader wants it: a ratio, or the difference as it is."""
        return math.exp(value) if self.scale == "ratio" else value


def paired(
    base: Sequence[float], other: Sequence[float], confidence: float = 0.95, scale: Scale | None = None
) -> Interval | None:
    """What changes from ``base`` to ``other``, values of the same pairs in the same order.

    None if there are fewer than two pairs or a value is not finite (a request that never ended makes its latency so).
    ``scale`` None: ratios if every value is above 0.
    """
    pairs = list(zip(base, other, strict=True))
    if len(pairs) < 2 or not all(math.isfinite(value) for pair in pairs for value in pair):
        return None
    if (scale or scale_of(base, other)) == "ratio":
        return interval("ratio", [math.log(after / before) for before, after in pairs], confidence)
    return interval("difference", [after - before for before, after in pairs], confidence)


def scale_of(*samples: Sequence[float]) -> Scale:
    """``ratio`` if all values have one."""
    return "ratio" if all(value > 0 for sample in samples for value in sample) else "difference"


def interval(scale: Scale, values: Sequence[float], confidence: float) -> Interval:
    """The t interval of the mean of two or more ``values``."""
    mean, dof = fmean(values), len(values) - 1
    error = stdev(values) / math.sqrt(len(values))
    half = quantile(confidence, dof) * error
    nothing = 1.0 if abs(mean) <= _NOTHING else 0.0
    p = nothing if error <= _NOTHING else two_sided(mean / error, dof)
    return Interval(scale, tuple(values), mean, mean - half, mean + half, p)


def sign_flip_p(values: Sequence[float]) -> float | None:
    """Exact p value of "the signs are chance": the share of all sign patterns whose mean is as far from 0.

    It assumes nothing about the shape of the distribution.  None for more than ``MOST_FLIPS`` values.
    """
    if len(values) > MOST_FLIPS:
        return None
    seen = abs(sum(values)) - _NOTHING
    sums = (abs(sum(itertools.starmap(float.__mul__, zip(values, signs, strict=True)))) for signs in _signs(values))
    as_far: int = sum(total >= seen for total in sums)
    return as_far / float(2 ** len(values))


def _signs(values: Sequence[float]) -> Iterable[tuple[float, ...]]:
    return itertools.product((1.0, -1.0), repeat=len(values))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p values adjusted for having looked at all of them (Holm's step-down method)."""
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, (name, p) in enumerate(ordered):
        worst = max(worst, min(1.0, p * (len(ordered) - rank)))
        adjusted[name] = worst
    return adjusted
