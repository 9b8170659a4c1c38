"""Time that moves only when told to."""

from __future__ import annotations


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
