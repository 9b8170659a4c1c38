"""uvicorn's protocol for one connection, with a deadline for the head of every request; needs the extra ``http``."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from . import switch


class HttpProtocol(H11Protocol):
    """A connection that cannot be held by bytes that never make a request.

    The library closes what is kept alive and says nothing, but stops counting at the first byte that comes, be it a
    piece of a head or the rest of a body whose request has been answered.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = asyncio.get_running_loop().call_later(switch.HEAD_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
