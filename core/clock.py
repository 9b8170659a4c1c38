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
