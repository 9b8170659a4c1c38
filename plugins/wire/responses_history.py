"""What ``previous_response_id`` finds: the conversations of one connection, gone with it, and those that are stored."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ...core.errors import ClientError
from .reading import MAX_SHOWN
from .responses_requests import Message

MAX_OTHERS = 32  # besides the latest of every lane
MAX_BYTES = 64 * 2**20
MESSAGE_BYTES = 256  # of a message besides its text: there may be many empty ones


class _Entry(NamedTuple):
    messages: tuple[Message, ...]
    num_bytes: int
    lane: str | None


class Stored(NamedTuple):
    """A response that outlives its connection.  ``body``: as it was at its end, JSON."""

    messages: tuple[Message, ...]
    body: bytes


class ResponseStore:
    """The stored responses of all peers, in memory: the least recently used go when ``max_bytes`` are exceeded."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self.num_bytes = max_bytes, 0
        self._entries: OrderedDict[tuple[str, str], tuple[Stored, int]] = OrderedDict()  # each with its bytes

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, owner: str) -> OwnResponses | None:
        """What this peer has stored; another one does not find it.  None: nothing is stored here."""
        return OwnResponses(self, owner) if self._max_bytes else None

    def add(self, owner: str, response_id: str, stored: Stored) -> None:
        num_bytes = _num_bytes(stored.messages) + len(stored.body)
        self._entries[owner, response_id] = stored, num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= self._entries.popitem(last=False)[1][1]

    def find(self, owner: str, response_id: str) -> Stored | None:
        if (found := self._entries.get((owner, response_id))) is None:
            return None
        self._entries.move_to_end((owner, response_id))
        return found[0]

    def drop(self, owner: str, response_id: str) -> bool:
        """Forget it; False if there is none."""
        gone = self._entries.pop((owner, response_id), None)
        if gone is not None:
            self.num_bytes -= gone[1]
        return gone is not None


class OwnResponses(NamedTuple):
    """One peer's part of the store."""

    store: ResponseStore
    owner: str

    def add(self, response_id: str, stored: Stored) -> None:
        self.store.add(self.owner, response_id, stored)

    def find(self, response_id: str) -> Stored | None:
        return self.store.find(self.owner, response_id)


class History:
    """Conversations by response id; the latest of each lane is kept longest."""

    def __init__(self, shelf: OwnResponses | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._latest: dict[str | None, str] = {}
        self._bytes, self._max_bytes, self._shelf = 0, max_bytes, shelf

    def find(self, response_id: str) -> tuple[Message, ...]:
        """The messages up to and with that response.  Raises ClientError ``previous_response_not_found``."""
        if (entry := self._entries.get(response_id)) is not None:
            self._entries.move_to_end(response_id)
            return entry.messages
        if self._shelf is not None and (stored := self._shelf.find(response_id)) is not None:
            return stored.messages
        text = f"Previous response with id {response_id[:MAX_SHOWN]!r} not found."
        raise ClientError("previous_response_not_found", text, "previous_response_id")

    def add(self, response_id: str, messages: tuple[Message, ...], lane: str | None) -> None:
        num_bytes = _num_bytes(messages)
        self._entries[response_id] = _Entry(messages, num_bytes, lane)
        self._latest[lane] = response_id
        self._bytes += num_bytes
        while self._bytes > self._max_bytes and self._entries:
            self.drop(next((one for one in self._entries if not self._is_latest(one)), next(iter(self._entries))))
        others = [one for one in self._entries if not self._is_latest(one)]
        for old in others[: max(0, len(others) - MAX_OTHERS)]:
            self.drop(old)

    def drop(self, response_id: str | None) -> None:
        """Forget it, for instance because its continuation failed; what is stored stays."""
        entry = self._entries.pop(response_id or "", None)
        if entry is not None:
            self._bytes -= entry.num_bytes
            if self._latest.get(entry.lane) == response_id:
                del self._latest[entry.lane]

    def _is_latest(self, response_id: str) -> bool:
        return self._latest.get(self._entries[response_id].lane) == response_id


def _num_bytes(messages: tuple[Message, ...]) -> int:
    return sum(MESSAGE_BYTES + len(message["content"].encode()) for message in messages)
