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


_CODES = {
    ErrorKind(400, 1008, "client"): "invalid_json invalid_request unknown_event",
    ErrorKind(400, None, "client"): "unsupported_parameter unsupported_event invalid_stream_id duplicate_id"
    " context_length_exceeded kv_capacity_exceeded chat_template_error previous_response_not_found"
    " websocket_stream_limit_reached steering_not_supported conversation_already_has_active_response"
    " response_cancel_not_active",
    ErrorKind(400, 1012, "client"): "websocket_connection_limit_reached",
    ErrorKind(401, 1008, "client"): "invalid_api_key",
    ErrorKind(403, 1008, "client"): "forbidden",
    ErrorKind(404, None, "client"): "model_not_found not_found resume_unknown",
    ErrorKind(409, None, "client"): "detached",
    ErrorKind(410, None, "client"): "resume_expired",
    ErrorKind(429, 1013, "load"): "queue_full",
    ErrorKind(429, None, "load"): "rate_limited",
    ErrorKind(500, 1011, "engine"): "server_error",
    ErrorKind(503, 1012, "load"): "draining",
    ErrorKind(503, 1013, "load"): "overloaded",
    ErrorKind(504, None, "load"): "deadline_exceeded",
}
ERROR_KINDS = {code: kind for kind, codes in _CODES.items() for code in codes.split()}


class ClientError(MainspringError):
    """The peer's: maps to one wire ``code``; ``message`` is safe to show, ``param`` names the offending field."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param
        self.kind = ERROR_KINDS[code]


def nearest(word: str, valid: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'fcfs'? (valid: fair, fcfs)`` for an unknown ``word``."""
    real = {name.casefold(): name for name in sorted(valid)}
    close = difflib.get_close_matches(word.casefold(), real, n=1, cutoff=0.5)
    return (f"; did you mean {real[close[0]]!r}?" if close else "") + f" (valid: {', '.join(real.values()) or 'none'})"
