"""The record of one cached block, and the contract of the structures that find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Tokens = tuple[int, ...]


class Entry:
    """One full block whose content can be found.  Its identity is ``(parent, tokens)``, with the salt at the start of
    the chain; ``key`` is only a name for it."""

    __slots__ = (
        "alive",
        "block",
        "created",
        "depth",
        "epoch",
        "hits",
        "idle",
        "key",
        "lease_until",
        "num_children",
        "parent",
        "place",
        "priority",
        "salt",
        "tokens",
        "used",
        "version",
    )

    def __init__(self, key: int, parent: Entry | None, salt: str, tokens: Tokens, block: int, tick: int) -> None:
        self.key, self.parent, self.salt, self.tokens, self.block = key, parent, salt, tokens, block
        self.depth: int = parent.depth + 1 if parent else 0  # blocks before it
        self.created = self.used = tick
        self.hits = self.num_children = 0
        self.version = self.epoch = 0  # tell current heap items from stale ones
        self.priority = 2**31
        self.lease_until = 0.0  # clock value in seconds; before it, evicted only if nothing else is left
        self.alive, self.idle = True, False
        self.place: Any = None  # where the look-up structure keeps it

    def __repr__(self) -> str:
        return f"<entry {self.key} block {self.block} depth {self.depth}>"


class Lookup(Protocol):
    """Finds entries by content.  Equal means equal token by token, from the start, under the same salt."""

    def child(self, parent: Entry | None, salt: str, tokens: Tokens) -> Entry | None:
        """The block with ``tokens`` right after ``parent``."""

    def walk(self, salt: str, token_ids: Sequence[int], limit: int) -> list[Entry]:
        """The longest unbroken run of cached blocks at the start of ``token_ids``, at most ``limit`` blocks."""

    def insert(self, entry: Entry) -> None: ...
    def remove(self, entry: Entry) -> None:
        """Forget an entry without children."""

    def clear(self) -> None: ...
    def check(self) -> None:
        """Raise AssertionError if the structure is broken."""
