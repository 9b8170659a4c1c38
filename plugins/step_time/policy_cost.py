"""What a decision costs, from a fitted formula and never from a timer, so that simulated runs stay byte-equal."""

from __future__ import annotations

import msgspec


class PolicyCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of one decision: ``a_us + b_us x running + c_us x waiting``."""

    a_us: float = 0.0
    b_us: float = 0.0
    c_us: float = 0.0

    def seconds(self, running: int, waiting: int) -> float:
        """Seconds with so many requests running and waiting."""
        return (self.a_us + self.b_us * running + self.c_us * waiting) * 1e-6
