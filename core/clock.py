"""Time as an argument: the kernel reads a clock once per message and hands ``now`` to everyone.

Times are float seconds on one monotonic axis whose zero means nothing; never compare them across processes.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything with ``now() -> float`` seconds, never going backwards."""

    def now(self) -> float: ...


class MonotonicClock:
    """The machine's monotonic clock."""

    now = staticmethod(time.monotonic)


class ManualClock:
    """A clock that moves only when told to, for the simulator and for tests."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance_to(self, moment: float) -> None:
        """Move to ``moment`` (seconds); raises ValueError if that is in the past."""
        if moment < self._now:
            raise ValueError(f"clock cannot go back from {self._now} to {moment}")
        self._now = moment
