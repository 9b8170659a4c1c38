"""Connections that have something to send are written one after the other, a batch each, without a task of their own.

After a step every connection has a delta or more.  Their writes are cheap together (one call into the system each), but
a thousand of them take longer than a step should wait: they stop after each ``SLICE_S`` and let the loop see what has
come meanwhile, the next step's ids among it.  Whoever has not had its turn by then gets both steps' text in one delta,
so a server at its limit keeps its pace with fewer and longer deltas.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

SLICE_S = 0.002


class Writer(Protocol):
    """Somebody who has something to send."""

    def write(self) -> bool:
        """Send a batch; True: there is more, and room for it."""


class Turns:
    """First come, first served."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Writer] = deque()
        self._scheduled = False

    def add(self, writer: Writer) -> None:
        """``writer`` has something to send; it must not stand in the queue already."""
        self._queue.append(writer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        queue, clock = self._queue, self._loop.time
        stop = clock() + SLICE_S
        try:
            while queue:
                writer = queue.popleft()
                if writer.write():
                    queue.append(writer)
                if clock() >= stop:
                    break
        finally:  # whatever one of them does, the others get their turn
            self._scheduled = bool(queue)
            if queue:
                self._loop.call_soon(self._run)
