"""Orders that change with time: sorted only as far as somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop
from typing import Any

from ...core.request import RequestView


def smallest_first(requests: Iterable[RequestView], key: Callable[[RequestView], Any]) -> Iterator[RequestView]:
    """Lazily, ties by arrival.  The first costs a pass over all, each further one the logarithm of their number."""
    heap = [(key(request), request.seq, request) for request in requests]
    heapify(heap)
    while heap:
        yield heappop(heap)[2]
