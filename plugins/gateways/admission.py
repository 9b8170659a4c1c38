"""How much each peer has going on, against its limits and those of the server."""

from __future__ import annotations

from collections import Counter

from ...core.errors import ClientError
from ..settings import ServerConfig
from .keys import Peer


class Admission:
    """Counts requests per peer and waiting requests per server.  Every ``enter`` has one ``leave``."""

    def __init__(self, server: ServerConfig) -> None:
        self._server = server
        self.requests: Counter[str] = Counter()  # unfinished, by name of the peer
        self.num_queued = 0  # wait in the gateway for their connection's turn

    def enter(self, peer: Peer) -> None:
        """One more request.  Raises ClientError ``rate_limited``."""
        if peer.max_requests and self.requests[peer.name] >= peer.max_requests:
            raise ClientError("rate_limited", f"this key may have {peer.max_requests} unfinished requests at once")
        self.requests[peer.name] += 1

    def leave(self, peer: Peer) -> None:
        self.requests[peer.name] -= 1
        if not self.requests[peer.name]:
            del self.requests[peer.name]

    def check_queue(self, num_queued: int, num_bytes: int) -> None:
        """Whether a connection with ``num_queued`` waiting requests may have another one; ``num_bytes`` are the frames
        of all its unfinished requests.  Raises ClientError ``queue_full``."""
        server = self._server
        if num_queued >= server.max_queued_per_connection:
            limit = server.max_running_per_connection + server.max_queued_per_connection
            raise ClientError("queue_full", f"a connection may have {limit} unfinished requests")
        if self.num_queued >= server.max_queued:
            raise ClientError("queue_full", f"{server.max_queued} requests wait already on this server")
        if num_bytes > server.max_pending_bytes:
            raise ClientError("queue_full", f"the unfinished requests of this connection hold {num_bytes} bytes")
