"""What happens to the cache's content, so that somebody elsewhere can know it: stored, removed, cleared."""

from __future__ import annotations

from typing import NamedTuple


class Stored(NamedTuple):
    """A full block became findable.  ``parent`` is the key of the block before it, None at the start of a prompt."""

    key: int
    parent: int | None
    token_ids: tuple[int, ...]
    salt: str


class Removed(NamedTuple):
    """It can no longer be found."""

    key: int


class Cleared(NamedTuple):
    """Nothing can be found any more."""


CacheEvent = Stored | Removed | Cleared


class CacheMirror:
    """Rebuilds the cache's content from its events, for instance to route a prompt to the engine that knows it."""

    def __init__(self) -> None:
        self.blocks: dict[int, Stored] = {}

    def __call__(self, event: CacheEvent) -> None:
        match event:
            case Stored():
                assert event.key not in self.blocks, f"{event} stored twice"
                assert event.parent is None or event.parent in self.blocks, f"{event} has no parent"
                self.blocks[event.key] = event
            case Removed():
                del self.blocks[event.key]
            case Cleared():
                self.blocks.clear()

    def prefixes(self) -> set[tuple[str, tuple[int, ...]]]:
        """``(salt, all token ids up to the end of the block)`` of every cached block."""
        return {(stored.salt, self._prefix(stored)) for stored in self.blocks.values()}

    def _prefix(self, stored: Stored) -> tuple[int, ...]:
        parts = [stored.token_ids]
        while stored.parent is not None:
            stored = self.blocks[stored.parent]
            parts.append(stored.token_ids)
        return tuple(token for part in reversed(parts) for token in part)
