"""Streams that can be resumed after their connection is lost, by token."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from ...core.errors import ClientError
from .keys import Peer

if TYPE_CHECKING:
    from .generation import Generation

MAX_REMEMBERED = 1000  # tokens whose time is over, to tell "too late" from "never heard of"


class Shelf:
    """What ``resume`` looks in.  Tokens belong to a peer: another one does not find them."""

    def __init__(self, max_per_peer: int) -> None:
        self._max_per_peer = max_per_peer
        self._kept: dict[tuple[str, str], Generation] = {}
        self._expired: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, peer: Peer, token: str, generation: Generation) -> None:
        """Keep it until ``drop``.  Raises ClientError ``rate_limited`` when the peer has too many."""
        if self._counts[peer.name] >= self._max_per_peer:
            raise ClientError("rate_limited", f"{self._max_per_peer} streams are kept for a resume already", "retain_s")
        self._counts[peer.name] += 1
        self._kept[peer.name, token] = generation

    def cancel_all(self, why: str) -> None:
        """End what still runs."""
        for generation in list(self._kept.values()):
            generation.cancel(why)

    def drop(self, peer: Peer, token: str) -> None:
        """Its time is over; ``find`` says so for a while."""
        if self._kept.pop((peer.name, token), None) is not None:
            self._counts[peer.name] -= 1
            self._expired[peer.name, token] = None
            if len(self._expired) > MAX_REMEMBERED:
                self._expired.popitem(last=False)

    def find(self, peer: Peer, token: str) -> Generation:
        """Raises ClientError ``resume_unknown`` or ``resume_expired``."""
        found = self._kept.get((peer.name, token))
        if found is None:
            if (peer.name, token) in self._expired:
                raise ClientError("resume_expired", "this stream was kept for its retain_s and is gone", "token")
            raise ClientError("resume_unknown", "no stream has this token", "token")
        return found
