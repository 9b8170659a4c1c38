"""Student's t for whole degrees of freedom, by its finite series (Abramowitz and Stegun 26.7.3 and 26.7.4)."""

from __future__ import annotations

import math

_FAR = 1e6  # no quantile that is asked for lies beyond
_HALVINGS = 80


def two_sided(t: float, dof: int) -> float:
    """Probability that |T| is at least ``|t|`` with ``dof`` degrees of freedom."""
    if math.isinf(t):
        return 0.0
    angle = math.atan(abs(t) / math.sqrt(dof))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = dof % 2
    term = math.cos(angle) if odd else 1.0
    total = term if dof > 1 else 0.0
    for power in range(2 + odd, dof - 1, 2):
        term *= square * (power - 1) / power
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1.0 - inside))


def quantile(confidence: float, dof: int) -> float:
    """The t with ``confidence`` of the distribution between -t and t."""
    low, high = 0.0, _FAR
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if two_sided(middle, dof) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high
