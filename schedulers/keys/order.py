"""Orders that change with time: sorted only as far as somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop
from itertools import islice
from typing import Any

from ...core.request import RequestView


def smallest_first(
    requests: Iterable[RequestView], key: Callable[[RequestView], Any], look_ahead: int
) -> Iterator[RequestView]:
    """Lazily, ties by arrival.  Only the first ``look_ahead`` are sorted, the others follow as they came: the first
    answer costs a look at each of those, a further one the logarithm of their number."""
    waiting = iter(requests)
    heap = [(key(request), request.seq, request) for request in islice(waiting, look_ahead)]
    heapify(heap)
    while heap:
        yield heappop(heap)[2]
    yield from waiting
