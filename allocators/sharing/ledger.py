"""Hit statistics of a prefix cache: how much of what was asked for was there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...core.messages import Started

COUNTED = (
    "lookups",
    "lookup_tokens",
    "hit_tokens",
    "resumed_lookups",
    "resumed_lookup_tokens",
    "resumed_hit_tokens",
)


class HitLedger:
    """Counts each admission that took place once.  A request that resumes after a preemption counts apart, and one
    that may not read the cache does not count at all."""

    def __init__(self) -> None:
        self._counters: Counter[str] = Counter()
        self._preempted: set[str] = set()

    def left(self, released: Iterable[str], preempted: Iterable[str]) -> None:
        """Requests that gave up their blocks for good, or to come back."""
        self._preempted.difference_update(released)
        self._preempted.update(preempted)

    def count(self, started: Started, block_size: int) -> None:
        resumed = started.rid in self._preempted
        self._preempted.discard(started.rid)
        if not started.read_cache:
            return
        kind = "resumed_" if resumed else ""
        self._counters[kind + "lookups"] += 1
        self._counters[kind + "lookup_tokens"] += len(started.token_ids)
        self._counters[kind + "hit_tokens"] += started.num_cached_tokens
        if not resumed:
            self._counters["first_block_tokens"] += min(block_size, len(started.token_ids))
            self._counters["first_block_hit_tokens"] += min(block_size, started.num_cached_tokens)

    def stats(self) -> dict[str, float]:
        """Tokens looked up and found; ``hit_rate_beyond_first_block`` leaves out what every prompt may begin with."""
        counters = self._counters
        beyond = counters["lookup_tokens"] - counters["first_block_tokens"]
        hits_beyond = counters["hit_tokens"] - counters["first_block_hit_tokens"]
        return {
            **{name: counters[name] for name in COUNTED},
            "hit_rate": counters["hit_tokens"] / max(1, counters["lookup_tokens"]),
            "hit_rate_beyond_first_block": hits_beyond / max(1, beyond),
        }
