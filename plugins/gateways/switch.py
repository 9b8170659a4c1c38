"""One port for two HTTP stacks: the first bytes of a connection decide which of them it gets.

The WebSocket library can neither read the body of a request nor stream an answer, so requests that have a body go to a
server that can; everything else, WebSockets among it, goes the library's own way.  The decision is made before the
library sees the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from websockets.asyncio.server import ServerConnection

from .guarded import GuardedConnection

HEAD_S = 10.0  # for the first bytes to come, and for the head of each request that may have a body
WITH_BODY = (b"POST ", b"PUT ", b"PATCH ")
MAY_HAVE_ONE = (*WITH_BODY, b"DELETE ", b"OPTIONS ")


def switching(make_other: Callable[[], asyncio.Protocol], methods: tuple[bytes, ...]) -> type[ServerConnection]:
    """A connection class for ``serve(create_connection=...)``; ``make_other`` makes the protocol for ``methods``, which
    itself sees to it that the head of a request comes within HEAD_S."""

    class Switch(GuardedConnection):
        _chosen = False
        _begun = b""
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._waiting = cast(asyncio.Transport, transport)
            self._timer = asyncio.get_running_loop().call_later(HEAD_S, self._waiting.abort)

        def data_received(self, data: bytes) -> None:
            if self._chosen:
                super().data_received(data)
                return
            self._begun += data
            if len(self._begun) < max(map(len, methods)) and b" " not in self._begun:
                return
            self._choose()
            if self._begun.startswith(methods):
                other = make_other()
                self._waiting.set_protocol(other)
                other.connection_made(self._waiting)
                other.data_received(self._begun)
            else:
                self._chosen = True
                super().connection_made(self._waiting)
                super().data_received(self._begun)
            self._begun = b""

        def eof_received(self) -> Any:
            return super().eof_received() if self._chosen else self._waiting.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._choose()
            if self._chosen:
                super().connection_lost(exc)

        def _choose(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Switch
