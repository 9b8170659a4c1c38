"""What a decision costs, from a fitted formula and never from a timer, so that simulated runs stay byte-equal."""

from __future__ import annotations

import msgspec


class PolicyCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of one decision: ``a_us + b_us x running + c_us x waiting``."""

    a_us: float = 0.0
    b_us: float = 0.0
    c_us: float = 0.0

    def plus(self, other: PolicyCost) -> PolicyCost:
        """The sum of both."""
        return PolicyCost(a_us=self.a_us + other.a_us, b_us=self.b_us + other.b_us, c_us=self.c_us + other.c_us)

    def seconds(self, running: int, waiting: int) -> float:
        """Seconds with so many requests running and waiting."""
        return (self.a_us + self.b_us * running + self.c_us * waiting) * 1e-6
