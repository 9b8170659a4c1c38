"""Four kinds of error under one root, split by whose fault it is, and the one table of wire codes.

"No room", "try later" and "denied" are values in messages, not exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple


class MainspringError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(MainspringError):
    """The operator's: names the file, the key, the value and the nearest valid one."""


class PluginError(MainspringError):
    """The plugin author's: names the plugin, the hook and what was expected."""


class EngineFault(MainspringError):
    """Ours: an invariant broke or the executor failed."""


class ErrorKind(NamedTuple):
    """What a wire code means: HTTP status, WebSocket close code if the connection must go, and whose fault."""

    status: int
    close: int | None
    fault: str


ERROR_KINDS: dict[str, ErrorKind] = {
    "invalid_json": ErrorKind(400, 1008, "client"),
    "invalid_request": ErrorKind(400, 1008, "client"),
    "unknown_event": ErrorKind(400, 1008, "client"),
    "unsupported_parameter": ErrorKind(400, None, "client"),
    "invalid_stream_id": ErrorKind(400, None, "client"),
    "duplicate_id": ErrorKind(400, None, "client"),
    "context_length_exceeded": ErrorKind(400, None, "client"),
    "kv_capacity_exceeded": ErrorKind(400, None, "client"),
    "chat_template_error": ErrorKind(400, None, "client"),
    "previous_response_not_found": ErrorKind(400, None, "client"),
    "websocket_stream_limit_reached": ErrorKind(400, None, "client"),
    "websocket_connection_limit_reached": ErrorKind(400, 1012, "client"),
    "invalid_api_key": ErrorKind(401, 1008, "client"),
    "forbidden": ErrorKind(403, 1008, "client"),
    "model_not_found": ErrorKind(404, None, "client"),
    "not_found": ErrorKind(404, None, "client"),
    "resume_unknown": ErrorKind(404, None, "client"),
    "detached": ErrorKind(409, None, "client"),
    "resume_expired": ErrorKind(410, None, "client"),
    "queue_full": ErrorKind(429, 1013, "load"),
    "rate_limited": ErrorKind(429, None, "load"),
    "server_error": ErrorKind(500, 1011, "engine"),
    "draining": ErrorKind(503, 1012, "load"),
    "overloaded": ErrorKind(503, 1013, "load"),
    "deadline_exceeded": ErrorKind(504, None, "load"),
}


class ClientError(MainspringError):
    """The peer's: maps to one wire ``code``; ``message`` is safe to show, ``param`` names the offending field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.kind = ERROR_KINDS[code]


def nearest(word: str, valid: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'fcfs'? (valid: fair, fcfs)`` for an unknown ``word``."""
    names = sorted(valid)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return (f"; did you mean {close[0]!r}?" if close else "") + f" (valid: {', '.join(names) or 'none'})"
