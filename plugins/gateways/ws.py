"""The WebSocket gateway: the native protocol on ``/v1/stream``, the Responses API on ``/v1/responses``, the
Realtime API on ``/v1/realtime``, and what plain GET requests get (``pages``).

The socket is bound before the model is loaded, so that an occupied port is found in a second and not in a minute.
While the kernel drains the gateway keeps listening: health and readiness are answered, new streams are refused with
503, running ones go on; ``drain`` then closes every connection with 1012.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import random
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from ... import __version__
from ...core.edge import KernelPort
from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.messages import Control, Emit, Message, StepPlan, Submit
from ..logs import get
from ..metrics import Metrics
from ..settings import Config
from ..wire import llm_v1
from ..wire.control_v1 import ControlSession
from ..wire.llm_v1_frames import PROTOCOL
from ..wire.realtime import RealtimeSession
from ..wire.responses import ResponsesSession
from .api import ServerSession, TextApi
from .connection import CLOSE_TIMEOUT_S, Connection
from .door import CONTROL_PATH, Door, names_of
from .guarded import GuardedConnection
from .hub import Hub
from .keys import Peer, load_keys
from .no_bodies import NoBodies
from .pages import Pages
from .switch import WITH_BODY, switching

STREAM_PATH = "/v1/stream"
#: WebSocket paths and the subprotocol that each selects if it is offered.
REALTIME_PATH = "/v1/realtime"
SOCKETS = {STREAM_PATH: PROTOCOL, "/v1/responses": "", "/responses": "", REALTIME_PATH: "realtime"}
PING_INTERVAL_S = 20.0  # below the 60 s after which proxies drop a silent connection
PING_TIMEOUT_S = 90.0  # a client that pauses does not answer pings either, and must survive a pause
# Of each connection, in the system.  By itself it grows to megabytes for a client that does not read, and the tokens in
# them are computed and kept as context before the generation is paused.
SEND_BUFFER_BYTES = 128 * 1024
POLL_S = 0.01
BACKLOG = 1024  # connections the system may hold for us, also while the model is loading
AGE_JITTER = 0.05  # connections opened together are not all closed together

_log = get("gateway")


class WebSocketGateway:
    """An edge.  ``bind`` takes the address (at the latest in ``start``), ``start`` serves, ``run`` until cancelled."""

    api_level = 1
    name = "ws"
    consumes: tuple[type[Message], ...] = (Emit, StepPlan, Submit, Control)

    def __init__(self, options: None, config: Config, text: TextApi) -> None:
        """Raises ConfigError for a keys file that can't be used."""
        self._config, self._text = config, text
        self._keys = load_keys(config.server)
        self._socket: socket.socket | None = None
        self._port: int | None = None
        self._server: Server | None = None
        self._connections: set[Connection] = set()
        self._kernel: KernelPort | None = None
        self._hub: Hub | None = None
        self._metrics: Metrics | None = None
        #: Makes a session for an operator on ``/v1/control``; None, or no ``server.admin_key``: there is no such path.
        self.operator: Callable[[], ControlSession] | None = None

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
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # also of what it accepts
            self._port = self._socket.getsockname()[1]
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            # The name, or the address it came to, is not one of this machine's: no port would help.
            foreign = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            other = "--set server.host=ADDRESS (127.0.0.1: this machine only, 0.0.0.0: every network it is in)"
            hint = other if foreign else "--set server.port=N (0: any free port)"
            text = f"cannot listen on {host}:{port}: {why}; choose another with {hint}"
            raise ConfigError(f"server.host = {host!r}, server.port = {port}: {text}") from error

    def unbind(self) -> None:
        """Give the address back: the start goes no further."""
        bound, self._socket = self._socket, None
        if bound is not None:
            bound.close()

    def deliver(self, message: Message) -> None:
        """Text reaches this edge through sinks; here it learns of steps, for metrics and progress, and of a drain."""
        if self._metrics is None or self._hub is None:
            return
        if isinstance(message, Emit):
            self._metrics.on_emit(message, self._hub.port.now())
        elif isinstance(message, StepPlan):
            self._metrics.on_plan(message)
            self._hub.on_plan(message)
        elif isinstance(message, Submit):
            self._metrics.on_submit(message)
        elif isinstance(message, Control) and message.action == "drain":
            for connection in self._connections:
                connection.goaway("drain", self._config.server.drain_s)

    async def handed_over(self) -> None:
        """Return once everything that was taken before a drain has been given to the engine."""
        while any(connection.num_waiting for connection in self._connections):  # noqa: ASYNC110 - or ends otherwise
            await anyio.sleep(POLL_S)

    async def flush(self) -> None:
        """Return once every connection has sent what waited; a client that does not read holds it up."""
        await asyncio.gather(*(connection.flush() for connection in self._connections))

    async def start(self, port: KernelPort) -> None:
        """Begin to serve."""
        self.bind()
        assert self._socket is not None
        address = self._socket.getsockname()[0]
        server = self._config.server
        self._hub = hub = self._hub or Hub(self._text, port, server)
        self._metrics = self._metrics or self._make_metrics(port, hub)
        names = names_of(port.info.model, server.model_aliases)
        pages = Pages(port, names, int(time.time()), self._metrics.page, hub.responses)
        sockets = {**SOCKETS, CONTROL_PATH: ""} if server.admin_key and self.operator else SOCKETS
        self._door = door = Door(port, server, address, self._keys, sockets, pages)

        async def handler(ws: ServerConnection) -> None:
            await self._serve(ws, hub)

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
            create_connection=self._connection_class(hub, door, pages),
            compression=None,  # costs 90 KiB and half as much CPU again per connection for frames of 60 bytes
            max_size=server.max_message_bytes,
            ping_interval=PING_INTERVAL_S,
            ping_timeout=PING_TIMEOUT_S,
            server_header=f"mainspring/{__version__}",
            logger=logger,
        )
        shown = f"[{address}]" if ":" in address else address
        facts = {"max_message_bytes": server.max_message_bytes, "keys": self._keys.required}
        _log.info("listening", url=f"ws://{shown}:{self.port}{STREAM_PATH}", **facts)

    def _connection_class(self, hub: Hub, door: Door, pages: Pages) -> type[ServerConnection]:
        """What a TCP connection becomes."""
        return switching(NoBodies, WITH_BODY)

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
        if server is None:
            self.unbind()
            return
        self._socket = None  # the server closes it
        if self._connections:
            closing = [
                connection.close(1012, "server restart", CLOSE_TIMEOUT_S, keep=False)
                for connection in self._connections
            ]
            await asyncio.gather(*closing)
        if self._hub is not None:
            self._hub.shelf.cancel_all("server restart")
        server.close(code=1012, reason="server restart")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):  # handshakes that never end would hold it for longer
                await server.wait_closed()

    async def _serve(self, ws: ServerConnection, hub: Hub) -> None:
        peers, server = self._door.peers, self._config.server
        try:
            if self.operator is not None and ws.request is not None and urlsplit(ws.request.path).path == CONTROL_PATH:
                return await _operate(ws, self.operator())
            assert isinstance(ws, GuardedConnection)
            max_age_s = server.max_connection_age_s * random.uniform(1 - AGE_JITTER, 1 + AGE_JITTER)
            connection = Connection(ws, self._session(ws, hub, peers[ws]), hub, peers[ws], max_age_s)
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
        finally:
            del peers[ws]

    def _session(self, ws: ServerConnection, hub: Hub, peer: Peer) -> ServerSession:
        assert ws.request is not None
        server, info = self._config.server, hub.port.info
        aliases = names_of(info.model, server.model_aliases)[1:]
        path = urlsplit(ws.request.path).path
        if path == REALTIME_PATH:
            return RealtimeSession(
                model=info.model, max_context=info.max_context, clock=hub.port.now, names=server.model_aliases
            )
        if path != STREAM_PATH:
            return ResponsesSession(
                model=info.model,
                max_context=info.max_context,
                wall_clock=time.time,
                clock=hub.port.now,
                aliases=aliases,
                max_waiting=server.max_queued_per_connection,
                max_waiting_bytes=server.max_pending_bytes,
                shelf=hub.responses.of(peer.name),
            )
        limits = {
            "max_context_tokens": info.max_context,
            "max_message_bytes": server.max_message_bytes,
            "max_running": server.max_running_per_connection,
            "max_queued": server.max_queued_per_connection,
        }
        return llm_v1.Session(
            server=f"mainspring/{__version__}",
            model=info.model,
            limits=limits,
            wall_clock=time.time,
            clock=hub.port.now,
            aliases=aliases,
            max_retain_s=server.max_retain_s,
        )

    def _make_metrics(self, port: KernelPort, hub: Hub) -> Metrics:
        gauges = {
            "connections": ("open WebSocket connections", lambda: len(self._connections)),
            "requests_queued_in_gateway": ("requests that wait for their connection", lambda: hub.admission.num_queued),
            "requests_paused": ("requests paused because their client does not read", lambda: hub.num_paused),
            "streams_retained": ("streams that could be resumed", lambda: len(hub.shelf)),
        }
        counters = {
            "ws_slow_closed": ("connections cut because their client did not read", lambda: hub.num_slow_closed)
        }
        return Metrics(self._config.server.metrics_prefix, port.info.model, port.stats, gauges, counters)


async def _operate(ws: ServerConnection, session: ControlSession) -> None:
    """Answer an operator's frames one after the other until the connection is gone."""
    with contextlib.suppress(ConnectionClosed):
        async for frame in ws:
            if isinstance(frame, bytes):
                await ws.close(1003, "text frames only")
                return
            await ws.send(session.receive(frame), text=True)


@hookimpl
def register_gateways(register: Register) -> None:
    register("ws", WebSocketGateway, None)
