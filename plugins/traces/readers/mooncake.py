"""Mooncake's block-hash traces: arrivals, lengths, and which prompts share which 512-token blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..canonical import Trace, TraceRow
from ..mooncake import TraceRequest
from ..source import Collector, json_lines, read_bytes

BLOCK_TOKENS = 512


def read(path: Path, limit: int | None = None, jitter_s: float = 0.0, seed: int = 0) -> Trace:
    """``limit``: so many rows at most.  The conversation trace has its times on a grid of 3 s, bursts that never were:
    ``jitter_s = 3`` adds a uniform delay to each, drawn from ``seed``."""
    data, sha256 = read_bytes(path)
    rng, rows = np.random.default_rng(seed), Collector("mooncake", path, sha256)
    for _, line in json_lines(path, data, TraceRequest):
        rows.add(
            TraceRow(
                arrival_s=line.timestamp / 1e3 + jitter_s * float(rng.random()),
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                prefix_blocks=line.hash_ids,
                block_tokens=BLOCK_TOKENS,
            )
        )
    return rows.finish(limit)
