"""The WebSocket gateway: native protocol ``llm.v1`` on ``/v1/stream``, and GET ``/health`` and ``/ready``.

The socket is bound before the model is loaded, so that an occupied port is found in a second and not in a minute.
While the kernel drains the gateway keeps listening: health and readiness are answered, new streams are refused with
503, running ones go on; ``drain`` then closes every connection with 1012.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Sequence

import anyio
from websockets.asyncio.server import Server, ServerConnection, serve

from ... import __version__
from ..settings import Config
from ...core.edge import KernelPort
from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.messages import Message
from ..logs import get
from ..wire.llm_v1 import Session
from .api import TextApi
from .connection import CLOSE_TIMEOUT_S, Connection
from .door import STREAM_PATH, Door

WRITE_DEADLINE_S = 60.0  # one send may wait this long for a peer that does not read
PING_INTERVAL_S = 20.0  # below the 60 s after which proxies drop a silent connection
PING_TIMEOUT_S = 90.0  # a client that pauses does not answer pings either, and must survive a pause
BACKLOG = 1024  # connections the system may hold for us, also while the model is loading

_log = get("gateway")


class WebSocketGateway:
    """An edge.  ``bind`` takes the address (at the latest in ``start``), ``start`` serves, ``run`` until cancelled."""

    name = "ws"
    consumes: tuple[type[Message], ...] = ()

    def __init__(
        self,
        options: None,
        config: Config,
        text: TextApi,
        *,
        write_deadline_s: float = WRITE_DEADLINE_S,
        allow_origins: Sequence[str] = (),
    ) -> None:
        self._config, self._text = config, text
        self._write_deadline_s, self._allow_origins = write_deadline_s, allow_origins
        self._socket: socket.socket | None = None
        self._port: int | None = None
        self._server: Server | None = None
        self._connections: set[Connection] = set()

    @property
    def port(self) -> int:
        """The TCP port, also when the configuration asked for any (0); valid after ``bind``."""
        assert self._port is not None, "bind() comes first"
        return self._port

    def bind(self) -> None:
        """Take the address, once.  Raises ConfigError naming address and port when it can't be had."""
        if self._socket is not None:
            return
        host, port = self._config.server.host, self._port or self._config.server.port
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            # Listening at once: two servers could both bind, and the second would only find out when it listens.
            self._socket = socket.create_server(address[:2], family=family, backlog=BACKLOG)
            self._port = self._socket.getsockname()[1]
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(
                f"server.host = {host!r}, server.port = {port}: cannot listen on {host}:{port}: {why.lower()}; "
                "choose another with --set server.port=N (0: any free port)"
            ) from error

    def deliver(self, message: Message) -> None:
        """Never called: this edge consumes no messages, text reaches it through sinks."""

    async def flush(self) -> None:
        """Return once every connection has sent what waited; a client that does not read holds it up."""
        await asyncio.gather(*(connection.flush() for connection in self._connections))

    async def start(self, port: KernelPort) -> None:
        """Begin to serve."""
        self.bind()
        assert self._socket is not None
        address = self._socket.getsockname()[0]
        door = Door(port, self._config.server.host, address, self._allow_origins)

        async def handler(ws: ServerConnection) -> None:
            await self._serve(ws, port)

        # A logger of its own: at debug level the library logs whole frames, prompts included.
        logger = logging.getLogger("mainspring.websockets")
        logger.setLevel(logging.WARNING)
        self._server = await serve(
            handler,
            sock=self._socket,
            backlog=BACKLOG,
            process_request=door,
            origins=door.origins,
            select_subprotocol=door.select_subprotocol,
            compression=None,  # costs 90 KiB and half as much CPU again per connection for frames of 60 bytes
            max_size=self._config.server.max_message_bytes,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            server_header=f"mainspring/{__version__}",
            logger=logger,
        )
        shown = f"[{address}]" if ":" in address else address
        limit = self._config.server.max_message_bytes
        _log.info("listening", url=f"ws://{shown}:{self.port}{STREAM_PATH}", max_message_bytes=limit)

    async def run(self, port: KernelPort) -> None:
        """Serve until cancelled, then ``drain``."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.drain()

    async def drain(self) -> None:
        """Close every connection with 1012 after what waits for it was sent, stop listening; bounded in time.

        ``start`` serves again after it, on the same port.
        """
        server, self._server = self._server, None
        bound, self._socket = self._socket, None
        if server is None:
            if bound is not None:
                bound.close()
            return
        if self._connections:
            closing = [connection.close(1012, "server restart", CLOSE_TIMEOUT_S) for connection in self._connections]
            await asyncio.gather(*closing)
        server.close(code=1012, reason="server restart")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):  # handshakes that never end would hold it for longer
                await server.wait_closed()

    async def _serve(self, ws: ServerConnection, port: KernelPort) -> None:
        limits = {
            "max_context_tokens": port.info.max_context,
            "max_message_bytes": self._config.server.max_message_bytes,
        }
        session = Session(
            server=f"mainspring/{__version__}", model=port.info.model, limits=limits, wall_clock=time.time
        )
        connection = Connection(ws, session, self._text, port, self._write_deadline_s)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


@hookimpl
def register_gateways(register: Register) -> None:
    register("ws", WebSocketGateway, None)
