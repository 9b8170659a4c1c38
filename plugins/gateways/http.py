"""The gateway with the POST surfaces of an OpenAI-compatible server beside everything that ``ws`` serves, on one port.

``gateways = ["http"]`` in place of ``["ws"]``; needs the extra ``mainspring[http]``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from websockets.asyncio.server import ServerConnection

from ...core.errors import ClientError, ConfigError
from ...core.hookspecs import Register, hookimpl
from ..settings import Config
from .api import TextApi
from .connection import CLOSE_TIMEOUT_S
from .door import Door
from .http_app import HttpApp
from .hub import Hub
from .keys import Peer
from .pages import Pages
from .switch import MAY_HAVE_ONE, switching
from .ws import WebSocketGateway

KEEP_ALIVE_S = 30


class HttpGateway(WebSocketGateway):
    """An edge like ``ws``, whose requests with a body are served by uvicorn."""

    api_level = 1
    name = "http"

    def __init__(self, options: None, config: Config, text: TextApi) -> None:
        """Raises ConfigError if the extra is not installed."""
        try:
            import uvicorn
            from uvicorn.server import ServerState

            from .http_protocol import HttpProtocol
        except ImportError as error:
            raise ConfigError("gateways: http needs uvicorn: pip install 'mainspring[http]'") from error
        super().__init__(options, config, text)
        self._uvicorn, self._protocol, self._state = uvicorn, HttpProtocol, ServerState()

    def _connection_class(self, hub: Hub, door: Door, pages: Pages) -> type[ServerConnection]:
        def identify(headers: dict[str, str]) -> Peer | ClientError:
            return self._identify(door, headers)

        def abort(client: Any) -> None:
            for connection in self._state.connections:
                if isinstance(connection, self._protocol) and connection.client == client:
                    connection.transport.abort()

        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are about what peers send
        app = HttpApp(hub, pages, door.cors, identify, lambda: self._text.model, abort)  # type: ignore[attr-defined]
        config = self._uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            limit_concurrency=self._config.server.max_connections
            + 1,  # it refuses at the limit, the one that asks counted
        )
        config.load()
        return switching(lambda: self._protocol(config, self._state, {}), MAY_HAVE_ONE)

    async def flush(self) -> None:
        """Also for the answers over HTTP."""
        await super().flush()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks)

    async def drain(self) -> None:
        """Let the answers over HTTP end, close what is kept alive, then drain the WebSockets."""
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=CLOSE_TIMEOUT_S)
        for connection in list(self._state.connections):
            connection.shutdown()
        await super().drain()

    def _identify(self, door: Door, headers: dict[str, str]) -> Peer | ClientError:
        """Who asks; the same rules about Host and Origin as for WebSockets."""
        if not door.is_local_enough(headers.get("host", "")):
            return ClientError("forbidden", "the Host header names no loopback address")
        if not door.cors.allows(headers.get("origin")):
            return ClientError("forbidden", "pages of this origin may not use the server (server.allow_origins)")
        scheme, _, word = headers.get("authorization", "").partition(" ")
        key = word.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
        peer = self._keys.find(key)
        return (
            ClientError("invalid_api_key", "an API key is required (Authorization: Bearer KEY)")
            if peer is None
            else peer
        )


@hookimpl
def register_gateways(register: Register) -> None:
    register("http", HttpGateway, None)
