"""A WebSocket connection that is not at the mercy of its peer, where the library would be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

MAX_REPLY_BYTES = 256 * 1024  # of the library's own answers that may wait; thousands of pings

_SHORT_HEADS = tuple(bytes((0x81, size)) for size in range(126))


class GuardedConnection(ServerConnection):
    """Tells at once when the closing handshake begins, and does not read pings while the answers to others wait.

    After a close frame, or a frame that the protocol forbids, the library waits for the peer to close the TCP
    connection, and only then tells who reads.  It answers each ping at once and never waits until the answer is sent:
    a peer that sends pings and reads nothing would make it keep all answers in memory.
    """

    _reply_bytes = 0  # at most so much of what waits are answers
    _holds = False  # reading is paused until answers have been sent
    _when_closing: Callable[[], None] | None = None
    _when_writable: Callable[[], None] | None = None

    def when_writable(self, call: Callable[[], None]) -> None:
        """``call`` each time that there is room again after ``write_texts`` found none."""
        self._when_writable = call

    def write_texts(self, texts: Iterable[bytes]) -> bool:
        """Send each (UTF-8) as a message of its own, all in one write, on an open connection; False: there is no room
        for more.

        The library's ``send`` takes 20 us for each message, most of them in the system.  No message here is fragmented
        or compressed, so these may be written whenever the connection is open.
        """
        self.transport.write(b"".join([part for text in texts for part in (head_of(len(text)), text)]))
        return not self.paused

    def when_closing(self, call: Callable[[], None]) -> None:
        """``call`` once nothing that the peer still sends will be read."""
        self._when_closing = call
        self._look()

    def data_received(self, data: bytes) -> None:
        before = self.transport.get_write_buffer_size()
        super().data_received(data)
        # What was added meanwhile are answers: our own frames are written by the writer's task.
        grown = self.transport.get_write_buffer_size() - before
        # No more of them than all that waits: only then does the transport tell when it has been sent.
        self._reply_bytes = min(self._reply_bytes, before) + grown
        if self._reply_bytes > MAX_REPLY_BYTES:
            self._holds = True
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._holds:
            self._holds = False
            if not self.recv_messages.paused:  # else the library goes on reading when its queue is shorter
                self.transport.resume_reading()
        if self._when_writable is not None:
            self._when_writable()

    def send_data(self) -> None:
        super().send_data()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._look()

    def _look(self) -> None:
        if self._when_closing is not None and self.protocol.state is not State.OPEN:
            call, self._when_closing = self._when_closing, None
            call()


def head_of(size: int) -> bytes:
    """The head of an unmasked text frame with a whole message of ``size`` bytes (RFC 6455, section 5.2)."""
    if size < 126:
        return _SHORT_HEADS[size]
    return b"\x81\x7e" + size.to_bytes(2, "big") if size < 2**16 else b"\x81\x7f" + size.to_bytes(8, "big")
