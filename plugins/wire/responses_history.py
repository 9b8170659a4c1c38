"""What ``previous_response_id`` finds: the conversations of one connection, bounded, gone with it."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from ...core.errors import ClientError
from .responses_requests import Message

MAX_OTHERS = 32  # besides the latest of every lane
MAX_BYTES = 64 * 2**20


class _Entry(NamedTuple):
    messages: tuple[Message, ...]
    num_bytes: int
    lane: str | None


class History:
    """Conversations by response id; the latest of each lane is kept longest."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._latest: dict[str | None, str] = {}
        self._bytes, self._max_bytes = 0, max_bytes

    def find(self, response_id: str) -> tuple[Message, ...]:
        """The messages up to and with that response.  Raises ClientError ``previous_response_not_found``."""
        entry = self._entries.get(response_id)
        if entry is None:
            text = f"Previous response with id {response_id[:80]!r} not found."
            raise ClientError("previous_response_not_found", text, "previous_response_id")
        self._entries.move_to_end(response_id)
        return entry.messages

    def add(self, response_id: str, messages: tuple[Message, ...], lane: str | None) -> None:
        num_bytes = sum(len(message["content"]) for message in messages)
        self._entries[response_id] = _Entry(messages, num_bytes, lane)
        self._latest[lane] = response_id
        self._bytes += num_bytes
        while self._bytes > self._max_bytes and self._entries:
            self.drop(next((one for one in self._entries if not self._is_latest(one)), next(iter(self._entries))))
        others = [one for one in self._entries if not self._is_latest(one)]
        for old in others[: max(0, len(others) - MAX_OTHERS)]:
            self.drop(old)

    def drop(self, response_id: str | None) -> None:
        """Forget it, for instance because its continuation failed."""
        entry = self._entries.pop(response_id or "", None)
        if entry is not None:
            self._bytes -= entry.num_bytes
            if self._latest.get(entry.lane) == response_id:
                del self._latest[entry.lane]

    def _is_latest(self, response_id: str) -> bool:
        return self._latest.get(self._entries[response_id].lane) == response_id
