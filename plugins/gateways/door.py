"""What happens to an HTTP request before it becomes a WebSocket: plain answers, keys, limits, Origin and Host.

Browsers let any page open a socket to any host, so a server on the loopback interface takes only loopback origins
(or none at all, as programs send) and only loopback names in ``Host`` (a page may point its own name at 127.0.0.1).
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol

from ...core.edge import KernelPort
from ..settings import ServerConfig
from ..wire.errors import model_not_found
from .cors import Cors
from .keys import ANYBODY, Keys, Peer
from .pages import RETRY_AFTER_S, Page, Pages

CONTROL_PATH = "/v1/control"
KEY_PROTOCOL = "openai-insecure-api-key."  # browsers can't set headers, so the key comes as a subprotocol

_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")


class Refusal(NamedTuple):
    status: HTTPStatus
    code: str
    message: str
    headers: Mapping[str, str] = {}


class Door:
    """Answers plain requests and decides who may open a WebSocket.

    ``sockets`` are the WebSocket paths, each with the subprotocol it selects; ``address`` is the IP address that
    ``server.host`` came to.  A peer let in is found in ``peers`` until its connection is over.
    """

    def __init__(
        self, port: KernelPort, server: ServerConfig, address: str, keys: Keys, sockets: Mapping[str, str], pages: Pages
    ) -> None:
        self._port, self._server, self._keys, self._sockets, self._pages = port, server, keys, sockets, pages
        self._host = server.host.lower()
        self._loopback = _is_loopback(address)
        self.peers: dict[ServerConnection, Peer] = {}
        self.origins: list[Origin | re.Pattern[str] | None] = [None, *map(Origin, server.allow_origins)]
        if self._loopback:
            self.origins.append(_LOOPBACK_ORIGIN)
        self.cors = Cors(self.origins)

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """``process_request`` of the server: an answer, or None to go on with the WebSocket handshake."""
        answer = self._answer(connection, request)
        if answer is None:
            return None
        if isinstance(answer, Refusal):
            body: dict[str, Any] = {"error": {"code": answer.code, "message": answer.message}}
            answer = Page(answer.status, msgspec.json.encode(body), headers=answer.headers)
        response = connection.respond(answer.status, "")
        response.body = b"" if request.method == "HEAD" else answer.body
        for name in ("Content-Type", "Content-Length"):
            del response.headers[name]
        headers = {"Cache-Control": "no-store"}
        if answer.status is not HTTPStatus.NO_CONTENT:
            headers |= {"Content-Type": answer.type, "Content-Length": str(len(answer.body))}
        origin = request.headers.get("Origin")
        for name, value in (headers | self.cors.headers(origin) | dict(answer.headers)).items():
            response.headers[name] = value
        return response

    def select_subprotocol(self, connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """The path's protocol if it was offered, else none; an unknown offer is no reason to refuse, and one that
        holds a key is never repeated."""
        assert connection.request is not None
        wanted = self._sockets.get(urlsplit(connection.request.path).path, "")
        return Subprotocol(wanted) if wanted and wanted in offered else None

    def _answer(self, connection: ServerConnection, request: Request) -> Page | Refusal | None:
        try:
            parts = urlsplit(request.path)
        except ValueError:  # a host in brackets that is none
            return Refusal(HTTPStatus.BAD_REQUEST, "invalid_request", "the request's target is no address")
        path = parts.path
        if not all(self.is_local_enough(host) for host in request.headers.get_all("Host")):
            return Refusal(HTTPStatus.FORBIDDEN, "forbidden", "the Host header names no loopback address")
        upgrade = any("websocket" in value.lower() for value in request.headers.get_all("Upgrade"))
        page = None if upgrade and path in self._sockets else self._pages.find(path)
        if request.method == "OPTIONS":
            asks = {name.lower(): value for name, value in request.headers.raw_items()}
            if (allowed := self.cors.preflight(asks)) is not None:
                return Page(HTTPStatus.NO_CONTENT, b"", headers=allowed)
        if page is None and path not in self._sockets:
            valid = ", ".join([*self._sockets, *self._pages.paths])
            return Refusal(HTTPStatus.NOT_FOUND, "not_found", f"no such path; valid paths: {valid}")
        if path == CONTROL_PATH and path in self._sockets:
            return self._admit_operator(connection, request, upgrade)
        peer = self._peer(request, parts.query) if page is None or page.private else ANYBODY
        if isinstance(peer, Refusal):
            return peer
        if page is not None:
            if request.method not in ("GET", "HEAD"):
                allow = {"Allow": "GET, HEAD"}
                text = f"{path} answers GET and HEAD"
                return Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "invalid_request", text, allow)
            return page.make(peer)
        if not upgrade:
            text = f"{path} is a WebSocket" + (f" ({self._sockets[path]})" if self._sockets[path] else "")
            return Refusal(HTTPStatus.UPGRADE_REQUIRED, "invalid_request", text, {"Upgrade": "websocket"})
        for name in parse_qs(parts.query).get("model", ()):
            if name not in self._pages.names:
                return Refusal(HTTPStatus.NOT_FOUND, "model_not_found", str(model_not_found(name, self._pages.names)))
        return self._admit(connection, peer)

    def _admit_operator(self, connection: ServerConnection, request: Request, upgrade: bool) -> Refusal | None:
        """The control socket takes ``server.admin_key`` and nothing else, also while the server drains."""
        key = _bearer(request) or ""
        if not hmac.compare_digest(key.encode(), self._server.admin_key.encode()):
            text = "server.admin_key is required (Authorization: Bearer KEY)"
            return Refusal(HTTPStatus.UNAUTHORIZED, "invalid_api_key", text, {"WWW-Authenticate": "Bearer"})
        if not upgrade:
            text = f"{CONTROL_PATH} is a WebSocket"
            return Refusal(HTTPStatus.UPGRADE_REQUIRED, "invalid_request", text, {"Upgrade": "websocket"})
        self.peers[connection] = ANYBODY
        return None

    def _peer(self, request: Request, query: str) -> Peer | Refusal:
        """Who asks, or 401."""
        key = _bearer(request)
        for offer in ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(","):
            if key is None and offer.strip().startswith(KEY_PROTOCOL):
                key = offer.strip().removeprefix(KEY_PROTOCOL)
        if "api_key=" in query:
            if not self._server.query_key:
                text = "a key in the address ends up in logs: send it as Authorization: Bearer, or set server.query_key"
                return Refusal(HTTPStatus.BAD_REQUEST, "invalid_request", text)
            key = key or parse_qs(query).get("api_key", [""])[0]
        peer = self._keys.find(key)
        if peer is not None:
            return peer
        text = "the API key is not known" if key else "an API key is required (Authorization: Bearer KEY)"
        return Refusal(HTTPStatus.UNAUTHORIZED, "invalid_api_key", text, {"WWW-Authenticate": "Bearer"})

    def _admit(self, connection: ServerConnection, peer: Peer) -> Refusal | None:
        port, server = self._port, self._server
        again = {"Retry-After": str(RETRY_AFTER_S)}
        if port.draining or not port.ready:
            text = "the server is draining" if port.draining else "the engine is not ready"
            code = "draining" if port.draining else "overloaded"
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, code, text, again)
        mine = sum(other.name == peer.name for other in self.peers.values()) if peer.max_connections else 0
        if len(self.peers) >= server.max_connections or (peer.max_connections and mine >= peer.max_connections):
            self._forget_closed()  # those whose handshake failed later on
            mine = sum(other.name == peer.name for other in self.peers.values())
        if len(self.peers) >= server.max_connections:
            text = f"{server.max_connections} connections are open already"
            return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", text, again)
        if peer.max_connections and mine >= peer.max_connections:
            text = f"this key may have {peer.max_connections} connections"
            return Refusal(HTTPStatus.TOO_MANY_REQUESTS, "rate_limited", text, again)
        self.peers[connection] = peer
        return None

    def _forget_closed(self) -> None:
        for connection in [one for one in self.peers if one.state is State.CLOSED]:
            del self.peers[connection]

    def is_local_enough(self, host: str) -> bool:
        """Whether a ``Host`` header may name the server so: on loopback only by a name of this machine."""
        if not self._loopback:
            return True
        try:
            name = urlsplit("//" + host).hostname or ""
        except ValueError:
            return False
        return name in ("localhost", self._host) or name.endswith(".localhost") or _is_loopback(name)


def _bearer(request: Request) -> str | None:
    """The last bearer token of the request."""
    key = None
    for value in request.headers.get_all("Authorization"):
        scheme, _, word = value.partition(" ")
        if scheme.lower() == "bearer":
            key = word.strip()
    return key


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def names_of(model: str, aliases: Collection[str]) -> tuple[str, ...]:
    """Every name under which the model is served, its own first."""
    return (model, *(alias for alias in aliases if alias != model))
