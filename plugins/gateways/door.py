"""What happens to an HTTP request before it becomes a WebSocket: health, readiness, refusals, Origin and Host.

Browsers let any page open a socket to any host, so a server on the loopback interface takes only loopback origins
(or none at all, as programs send) and only loopback names in ``Host`` (a page may point its own name at 127.0.0.1).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response
from websockets.typing import Origin, Subprotocol

from ...core.edge import KernelPort
from ..wire.llm_v1_frames import PROTOCOL

STREAM_PATH = "/v1/stream"
PATHS = (STREAM_PATH, "/health", "/ready")
RETRY_AFTER_S = 2  # a refused handshake may be tried again then; WebSocket clients retry a 503 by themselves

_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")


class Door:
    """Answers plain requests and decides who may open a stream.  ``host`` is what the operator wrote, ``address`` the
    IP address it came to, ``allow_origins`` are exact Origin values accepted besides the defaults."""

    def __init__(self, port: KernelPort, host: str, address: str, allow_origins: Sequence[str] = ()) -> None:
        self._port, self._host = port, host.lower()
        self._loopback = _is_loopback(address)
        self.origins: list[Origin | re.Pattern[str] | None] = [None, *map(Origin, allow_origins)]
        if self._loopback:
            self.origins.append(_LOOPBACK_ORIGIN)

    def __call__(self, connection: ServerConnection, request: Request) -> Response | None:
        """``process_request`` of the server: an answer, or None to go on with the WebSocket handshake."""
        status, body, headers = self._answer(request)
        if status is None:
            return None
        response = connection.respond(status, msgspec.json.encode(body).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        response.headers["Cache-Control"] = "no-store"
        for name, value in headers.items():
            response.headers[name] = value
        if request.method == "HEAD":
            response.body = b""
        return response

    def select_subprotocol(self, connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """The native protocol if it was offered, else none; an unknown offer is no reason to refuse."""
        return Subprotocol(PROTOCOL) if PROTOCOL in offered else None

    def _answer(self, request: Request) -> tuple[HTTPStatus | None, dict[str, Any], dict[str, str]]:
        path = urlsplit(request.path).path
        if self._loopback and not all(self._is_local(host) for host in request.headers.get_all("Host")):
            return HTTPStatus.FORBIDDEN, _error("forbidden", "the Host header names no loopback address"), {}
        if path not in PATHS:
            text = f"no such path; valid paths: {', '.join(PATHS)}"
            return HTTPStatus.NOT_FOUND, {**_error("not_found", text), "paths": PATHS}, {}
        if path == STREAM_PATH:
            return self._stream(request)
        if request.method not in ("GET", "HEAD"):
            text = f"{path} answers GET and HEAD"
            return HTTPStatus.METHOD_NOT_ALLOWED, _error("invalid_request", text), {"Allow": "GET, HEAD"}
        port = self._port
        if path == "/health":
            alive = port.healthy
            return _status(alive), {"status": "ok" if alive else "failed"}, {}
        ready = port.ready and not port.draining
        state = "ready" if ready else "draining" if port.draining else "not ready"
        return _status(ready), {"status": state}, {} if ready else {"Retry-After": str(RETRY_AFTER_S)}

    def _stream(self, request: Request) -> tuple[HTTPStatus | None, dict[str, Any], dict[str, str]]:
        if not any("websocket" in value.lower() for value in request.headers.get_all("Upgrade")):
            text = f"{STREAM_PATH} is a WebSocket ({PROTOCOL})"
            headers = {"Upgrade": "websocket"}
            return HTTPStatus.UPGRADE_REQUIRED, _error("invalid_request", text), headers
        port = self._port
        if port.draining or not port.ready:
            text = "the server is draining" if port.draining else "the engine is not ready"
            body = _error("draining" if port.draining else "overloaded", text)
            return HTTPStatus.SERVICE_UNAVAILABLE, body, {"Retry-After": str(RETRY_AFTER_S)}
        return None, {}, {}

    def _is_local(self, host: str) -> bool:
        try:
            name = urlsplit("//" + host).hostname or ""
        except ValueError:
            return False
        return name in ("localhost", self._host) or name.endswith(".localhost") or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
