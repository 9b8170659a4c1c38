"""Measured vLLM runs, and timed traces as ``vllm bench serve`` takes them.

A line of a measured run has ``input_toks``, ``output_toks``, ``arrival_time`` and the engine's own moments (seconds);
a line of a timed trace has ``timestamp`` (ms), ``input_length``, ``output_length`` and perhaps ``hash_ids``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ....core.errors import ConfigError
from ..canonical import Trace, TraceRow
from ..source import Collector, json_lines, read_bytes


class Measured(msgspec.Struct, frozen=True):
    """One request of a measured run.  The last three times share one monotonic clock, ``arrival_time`` has another."""

    input_toks: int
    output_toks: int
    arrival_time: float
    queued_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0

    @property
    def ttft_s(self) -> float:
        """From the engine's queue to the first token."""
        return self.first_token_ts - self.queued_ts


class _Line(msgspec.Struct, frozen=True):
    input_toks: int = -1
    output_toks: int = -1
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    timestamp: float | None = None
    input_length: int = -1
    output_length: int = -1
    hash_ids: tuple[int, ...] = ()


def measured(path: Path) -> list[Measured]:
    """The requests of a measured run in file order.  Raises ConfigError naming file, line and field."""
    return [line for _, line in json_lines(path, read_bytes(path)[0], Measured)]


def read(path: Path, limit: int | None = None, block_tokens: int = 512) -> Trace:
    """``limit``: so many rows at most.  ``block_tokens``: what one of ``hash_ids`` stands for.

    A measured run arrives by ``queued_ts`` where it has one: that is when the engine saw the request.
    """
    data, sha256 = read_bytes(path)
    rows = Collector("vllm_timed", path, sha256)
    for number, line in json_lines(path, data, _Line):
        if line.timestamp is not None:
            at, tokens = line.timestamp / 1e3, (line.input_length, line.output_length)
        elif line.input_toks >= 0:
            at, tokens = line.queued_ts or line.arrival_time, (line.input_toks, line.output_toks)
        else:
            raise ConfigError(f"{path}: line {number}: neither timestamp nor input_toks")
        rows.add(
            TraceRow(
                arrival_s=at,
                input_tokens=tokens[0],
                output_tokens=tokens[1],
                prefix_blocks=line.hash_ids,
                block_tokens=block_tokens if line.hash_ids else 0,
            )
        )
    return rows.finish(limit)
