"""What an allocator remembers of one request that holds blocks."""

from __future__ import annotations

from ...core.messages import Row
from .entries import Entry


class Sequence:
    """``path`` are the entries of its first blocks, as far as they are full, computed and known by content."""

    __slots__ = (
        "branched",
        "computed",
        "findable",
        "forked",
        "ids",
        "newest",
        "path",
        "pending",
        "priority",
        "salt",
        "table",
    )

    def __init__(self, ids: list[int], salt: str = "", priority: int = 0) -> None:
        self.ids, self.salt, self.priority = ids, salt, priority
        self.table: tuple[int, ...] = ()
        self.path: list[Entry] = []
        self.computed = 0  # tokens whose keys and values are written by steps launched so far
        self.newest = 0  # the newest step that names it
        self.pending: dict[int, int] = {}  # step in flight -> position of the id it samples
        self.findable = True  # False: its blocks may not be what its ids say, so none becomes findable any more
        self.branched = False  # the block it writes next may also be a fork's
        self.forked = False  # not started yet: its blocks came from its parent

    def learn(self, row: Row) -> None:
        """Take up ids that the row brings."""
        if row.token_ids is not None and row.start <= len(self.ids) < row.start + row.count:
            self.ids.extend(row.token_ids[len(self.ids) - row.start :])

    def book(self, step: int, token: int) -> None:
        """The id that ``step`` sampled for it."""
        position = self.pending.pop(step, None)
        if position == len(self.ids):
            self.ids.append(token)
