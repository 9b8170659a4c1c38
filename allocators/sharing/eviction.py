"""Which cached block goes first: one small pure key per policy, smallest key first.

A key sees only the entry's own history.  It is taken when the block loses its last user and stays as it is until the
block is used again, so every policy costs the same heap operation.  Ends of chains always go before their beginnings
and leased entries after all others, whatever the key says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ...core.errors import ConfigError, nearest


class History(Protocol):
    """What a key may look at.  Times are ticks of the allocator's own counter, not seconds."""

    created: int  # when it was stored
    used: int  # when its last user left
    hits: int  # how often it was found
    priority: int  # of the most important request that used it; smaller is more important


EvictionKey = Callable[[History], Any]


def lru(entry: History) -> int:
    """The longest unused."""
    return entry.used


def mru(entry: History) -> int:
    """The most recently used: right for scans that cycle through more than fits."""
    return -entry.used


def fifo(entry: History) -> int:
    """The oldest, used or not."""
    return entry.created


def lfu(entry: History) -> tuple[int, int]:
    """The least often found, then the longest unused."""
    return entry.hits, entry.used


def priority(entry: History) -> tuple[int, int]:
    """The least important, then the longest unused."""
    return -entry.priority, entry.used


def slru(entry: History) -> tuple[bool, int]:
    """Two segments: what was never found again goes before what was, each by last use."""
    return entry.hits > 0, entry.used


KEYS: Mapping[str, EvictionKey] = {"fifo": fifo, "lfu": lfu, "lru": lru, "mru": mru, "priority": priority, "slru": slru}


def eviction_key(name: str) -> EvictionKey:
    """The key called ``name`` in ``allocator.evict``.  Raises ConfigError."""
    if name not in KEYS:
        raise ConfigError(f"allocator.evict = {name!r}: there is no such eviction order{nearest(name, KEYS)}")
    return KEYS[name]
