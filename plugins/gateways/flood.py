"""A WebSocket connection that answers no more pings than its peer reads answers.

The library answers each ping at once and never waits until the answer is sent, so a peer that sends pings and reads
nothing would make it keep all answers in memory.
"""

from __future__ import annotations

from websockets.asyncio.server import ServerConnection

MAX_REPLY_BYTES = 256 * 1024  # of the library's own answers that may wait; thousands of pings


class FloodGuarded(ServerConnection):
    """Cut when more than ``MAX_REPLY_BYTES`` of answers to its pings wait to be sent."""

    _reply_bytes = 0  # since the last time that nothing waited

    def data_received(self, data: bytes) -> None:
        before = self.transport.get_write_buffer_size()
        super().data_received(data)
        # What was added meanwhile are answers: our own frames are written by the writer's task.
        grown = self.transport.get_write_buffer_size() - before
        self._reply_bytes = (self._reply_bytes if before else 0) + grown
        if self._reply_bytes > MAX_REPLY_BYTES:
            self.transport.abort()
