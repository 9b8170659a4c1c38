"""The waiting requests in the order of a policy's keys, kept sorted so that no step has to look at all of them.

Requests stand in buckets (one, unless the policy names more).  Within a bucket they are sorted by ``waiting_key``;
between buckets the smallest ``bucket_key`` wins, read again after every pick.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Any

from ...core.request import RequestView

Entry = tuple[tuple[int, Any], int, RequestView]


def _order(entry: Entry) -> tuple[tuple[int, Any], int]:
    return entry[:2]


def _index(entries: list[Entry], entry: Entry) -> int:
    """Where ``entry`` itself stands, also among keys whose order makes no sense."""
    try:
        index = bisect_left(entries, _order(entry), key=_order)
        if entries[index] is entry:
            return index
    except Exception:  # noqa: BLE001, S110 - whatever comparing a policy's keys raises
        pass
    return next(index for index, other in enumerate(entries) if other is entry)


class InOrder:
    """The waiting requests in order; each iteration starts at the first and goes only as far as the caller."""

    __slots__ = ("_now", "_queue")

    def __init__(self, queue: WaitingQueue, now: float) -> None:
        self._queue, self._now = queue, now

    def __iter__(self) -> Iterator[RequestView]:
        return self._queue.pick(self._now)


class WaitingQueue:
    """Sorted waiting requests.  ``key``, ``bucket`` and ``bucket_key`` come from the policy through the guard."""

    def __init__(
        self,
        key: Callable[[RequestView, float], Any],
        bucket: Callable[[RequestView], Hashable],
        bucket_key: Callable[[Hashable, int, float], Any],
    ) -> None:
        self._key, self._bucket, self._bucket_key = key, bucket, bucket_key
        self._buckets: dict[Hashable, list[Entry]] = {}
        self._where: dict[str, tuple[Hashable, Entry]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, rid: str) -> bool:
        return rid in self._where

    def add(self, request: RequestView, now: float) -> None:
        bucket = self._bucket(request)
        entry: Entry = ((0, self._key(request, now)), request.seq, request)
        entries = self._buckets.setdefault(bucket, [])
        try:
            insort(entries, entry, key=_order)
        except Exception:  # noqa: BLE001 - keys that cannot be compared: the policy's fault, served after the others
            entry = ((1, ()), request.seq, request)
            entries.append(entry)
        self._where[request.rid] = bucket, entry

    def discard(self, rid: str) -> None:
        """Take ``rid`` out if it is in."""
        bucket, entry = self._where.pop(rid, (None, None))
        if entry is not None:
            entries = self._buckets[bucket]
            del entries[_index(entries, entry)]
            if not entries:
                del self._buckets[bucket]

    def rekey(self, rids: Iterable[str], now: float) -> None:
        """Sort these again by their present keys."""
        for rid in rids:
            if rid in self._where:
                request = self._where[rid][1][2]
                self.discard(rid)
                self.add(request, now)

    def rids(self) -> list[str]:
        return list(self._where)

    def requests(self) -> list[RequestView]:
        """Everyone, in no particular order."""
        return [entry[2] for _, entry in self._where.values()]

    def bucket_of(self, rid: str) -> Hashable:
        return self._where[rid][0]

    def pick(self, now: float, planned: Mapping[Hashable, int] = MappingProxyType({})) -> Iterator[RequestView]:
        """Lazily, in order.  ``planned`` are tokens by bucket admitted so far in this step; the key of a bucket is read
        again after each pick from it.  The queue must not change meanwhile."""
        if len(self._buckets) == 1:
            yield from (entry[2] for entry in next(iter(self._buckets.values())))
            return

        def head(bucket: Hashable, at: int) -> tuple[Any, ...]:
            key, seq, request = self._buckets[bucket][at]  # seq is unique: what follows it is never compared
            return self._bucket_key(bucket, planned.get(bucket, 0), now), key, seq, request, bucket, at

        heads = [head(bucket, 0) for bucket in self._buckets]
        heapify(heads)
        while heads:
            *_, request, bucket, at = heads[0]
            yield request
            if at + 1 < len(self._buckets[bucket]):
                heapreplace(heads, head(bucket, at + 1))
            else:
                heappop(heads)
