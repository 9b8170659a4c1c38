"""The answer of the WebSocket gateway to requests with a body, about which its library says nothing at all."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec

from ...core.errors import ClientError
from ..wire.errors import error_object

TEXT = "this server takes WebSockets and GET; POST needs gateways = [\"http\"] and pip install 'mainspring[http]'"
READ_S = 2.0  # the peer may send the rest of its body so long: who closes on it takes the answer back


class NoBodies(asyncio.Protocol):
    """Tells how to have such requests served, then ends the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        body = msgspec.json.encode({"error": error_object(ClientError("invalid_request", TEXT))})
        head = (
            "HTTP/1.1 405 Method Not Allowed\r\nAllow: GET, HEAD\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        self._transport.write_eof()
        self._end = asyncio.get_running_loop().call_later(READ_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
