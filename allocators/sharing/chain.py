"""Look-up by chained hash: one dictionary, one step per block.

The hash of a block covers its tokens and the hash of the block before it.  It only narrows the search: what is found
is compared token by token and by its parent, so colliding hashes cost time, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .entries import Entry, Tokens

#: (hash of the parent or of the salt, tokens) -> hash
HashBlock = Callable[[int, Tokens], int]


def hash_block(parent: int, tokens: Tokens) -> int:
    return hash((parent, tokens))


class ChainLookup:
    """Implements ``Lookup``; an entry's ``place`` is its hash."""

    def __init__(self, block_size: int, hasher: HashBlock = hash_block) -> None:
        self._block_size, self._hash = block_size, hasher
        self._buckets: dict[int, list[Entry]] = {}

    def child(self, parent: Entry | None, salt: str, tokens: Tokens) -> Entry | None:
        for entry in self._buckets.get(self._hash(parent.place if parent else hash(salt), tokens), ()):
            if entry.parent is parent and entry.tokens == tokens and entry.salt == salt:
                return entry
        return None

    def walk(self, salt: str, token_ids: Sequence[int], limit: int) -> list[Entry]:
        buckets, hasher, size = self._buckets, self._hash, self._block_size
        found: list[Entry] = []
        parent: Entry | None = None
        place = hash(salt)
        for start in range(0, limit * size, size):
            tokens = tuple(token_ids[start : start + size])
            place = hasher(place, tokens)
            for entry in buckets.get(place, ()):
                if entry.parent is parent and entry.tokens == tokens and entry.salt == salt:
                    break
            else:
                break
            parent = entry
            found.append(entry)
        return found

    def insert(self, entry: Entry) -> None:
        parent = entry.parent
        entry.place = self._hash(parent.place if parent else hash(entry.salt), entry.tokens)
        self._buckets.setdefault(entry.place, []).append(entry)

    def remove(self, entry: Entry) -> None:
        bucket = self._buckets[entry.place]
        bucket.remove(entry)
        if not bucket:
            del self._buckets[entry.place]

    def clear(self) -> None:
        self._buckets.clear()

    def check(self) -> None:
        for place, bucket in self._buckets.items():
            assert bucket, "an empty bucket is kept"
            assert all(entry.place == place and entry.alive for entry in bucket)
