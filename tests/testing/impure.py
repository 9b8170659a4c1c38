"""Policies that use what no policy may use."""

from __future__ import annotations

import time
from time import monotonic as innocent_name

from mainspring.core.policy import SchedulerPolicy
from mainspring.core.request import RequestView


class ReadsTheClock(SchedulerPolicy):
    """Orders by the time of day."""

    def waiting_key(self, request: RequestView, now: float) -> float:
        return time.monotonic() - request.arrival


class ReadsTheClockUnderAnotherName(SchedulerPolicy):
    """The function was fetched at import."""

    def bucket(self, request: RequestView) -> int:
        return int(innocent_name()) * 0


class LooksBehindTheView(SchedulerPolicy):
    """Reaches for the host's record."""

    def waiting_key(self, request: RequestView, now: float) -> int:
        return int(request._behind.seq)
