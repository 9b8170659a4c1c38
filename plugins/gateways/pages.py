"""What plain GET requests get: health, readiness, the list of models, metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from ...core.edge import KernelPort
from ...core.errors import ClientError
from ..wire.errors import error_object, model_not_found, response_not_found
from ..wire.responses_history import ResponseStore
from .keys import Peer

JSON = "application/json"
MODELS_PATH = "/v1/models"
RESPONSES_PATH = "/v1/responses"
RETRY_AFTER_S = 2  # who came at a bad time may try again then; WebSocket clients retry a 503 by themselves


class Page(NamedTuple):
    """An answer."""

    status: HTTPStatus
    body: bytes
    type: str = JSON
    headers: Mapping[str, str] = {}


class Entry(NamedTuple):
    """A page that can be asked for; ``private`` ones need a key when keys are configured."""

    make: Callable[[Peer], Page]
    private: bool


class Pages:
    """``find`` a page by its path.  ``names`` are the names of the model, ``created`` Unix seconds."""

    def __init__(
        self,
        port: KernelPort,
        names: tuple[str, ...],
        created: int,
        metrics: Callable[[], tuple[bytes, str]],
        stored: ResponseStore,
    ) -> None:
        self._port, self.names, self._created, self._metrics = port, names, created, metrics
        self._stored = stored
        self._pages = {
            "/health": Entry(self._health, False),
            "/ready": Entry(self._ready, False),
            MODELS_PATH: Entry(self._models, True),
            "/metrics": Entry(self._metrics_page, False),
        }

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._pages)

    def find(self, path: str) -> Entry | None:
        """``path`` as it was sent, with its escapes."""
        if path.startswith(MODELS_PATH + "/"):
            name = unquote(path.removeprefix(MODELS_PATH + "/"))
            return Entry(lambda _peer: self._model(name), True)
        if path.startswith(RESPONSES_PATH + "/"):
            wanted = unquote(path.removeprefix(RESPONSES_PATH + "/"))
            return Entry(lambda peer: self._response(peer, wanted), True)
        return self._pages.get(path)

    def _health(self, peer: Peer) -> Page:
        alive = self._port.healthy
        return _page(_status(alive), {"status": "ok" if alive else "failed"})

    def _ready(self, peer: Peer) -> Page:
        port = self._port
        ready = port.ready and not port.draining
        state = "ready" if ready else "draining" if port.draining else "not ready"
        headers = {} if ready else {"Retry-After": str(RETRY_AFTER_S)}
        return _page(_status(ready), {"status": state})._replace(headers=headers)

    def _models(self, peer: Peer) -> Page:
        return _page(HTTPStatus.OK, {"object": "list", "data": [self._card(name) for name in self.names]})

    def _model(self, name: str) -> Page:
        if name in self.names:
            return _page(HTTPStatus.OK, self._card(name))
        return _error(model_not_found(name, self.names))

    def _response(self, peer: Peer, response_id: str) -> Page:
        """A response that was stored."""
        found = self._stored.find(peer.name, response_id)
        if found is None:
            return _error(response_not_found(response_id))
        return Page(HTTPStatus.OK, found.body)

    def _card(self, name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": self._created, "owned_by": "mainspring"}
        info = self._port.info if self._port.ready else None
        return card | ({"max_model_len": info.max_context} if info else {})

    def _metrics_page(self, peer: Peer) -> Page:
        body, kind = self._metrics()
        return Page(HTTPStatus.OK, body, kind)


def _page(status: HTTPStatus, body: Any) -> Page:
    return Page(status, msgspec.json.encode(body))


def _error(error: ClientError) -> Page:
    return _page(HTTPStatus(error.kind.status), {"error": error_object(error)})


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
