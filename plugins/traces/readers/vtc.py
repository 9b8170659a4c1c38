"""The Arena trace of the VTC artifact: 27 clients, arrivals, lengths, and latencies measured under three policies."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ....core.errors import ConfigError
from ..canonical import Trace, TraceRow
from ..source import Collector, read_bytes


class Response(msgspec.Struct, frozen=True):
    """One request as it was measured: lengths in tokens, times in seconds."""

    adapter_dir: str
    prompt_len: int
    output_len: int
    req_time: float
    first_token_latency: float
    request_latency: float


class _Result(msgspec.Struct, frozen=True):
    responses: list[Response]


class _File(msgspec.Struct, frozen=True):
    result: _Result


def measured(path: Path) -> list[Response]:
    """The measured requests in file order.  Raises ConfigError naming file and field."""
    return _responses(path, read_bytes(path)[0])


def _responses(path: Path, data: bytes) -> list[Response]:
    try:
        return msgspec.json.decode(data, type=_File).result.responses
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(path: Path, limit: int | None = None) -> Trace:
    """``limit``: so many rows at most.  The tenant is the client's number."""
    data, sha256 = read_bytes(path)
    rows = Collector("vtc", path, sha256)
    for one in _responses(path, data):
        rows.add(
            TraceRow(
                arrival_s=one.req_time,
                input_tokens=one.prompt_len,
                output_tokens=one.output_len,
                tenant=one.adapter_dir.rpartition("-")[2],
            )
        )
    return rows.finish(limit)
