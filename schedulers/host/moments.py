"""Requests that something happens to at a moment to come: their deadlines, and the end of their patience."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator

SPARE = 64  # entries of ended requests that are always put up with


class Moments:
    """(moment, rid), earliest first.  An ended request's entry is dropped when its time comes, or with many others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, moment: float, rid: str) -> None:
        heapq.heappush(self._heap, (moment, rid))

    def due(self, now: float, alive: Container[str], num_alive: int) -> Iterator[tuple[float, str]]:
        """Take out, one by one, what has come by ``now`` for the rids that are ``alive`` when it is their turn."""
        if len(self._heap) > SPARE + 2 * num_alive:
            self._heap = sorted(entry for entry in self._heap if entry[1] in alive)
        while self._heap and self._heap[0][0] <= now:
            moment, rid = heapq.heappop(self._heap)
            if rid in alive:
                yield moment, rid
