"""Pairs of prompt and output lengths, as published for ShareGPT: lengths only, arrivals are drawn."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from ..canonical import Trace, TraceRow
from ..source import Collector, columns, number, read_bytes

WANTED = {"input": "num_prefill_tokens", "output": "num_decode_tokens"}


def read(
    path: Path,
    limit: int | None = None,
    rate_per_s: float = math.inf,
    seed: int = 0,
    input_column: str = WANTED["input"],
    output_column: str = WANTED["output"],
) -> Trace:
    """Poisson arrivals at ``rate_per_s`` drawn from ``seed``; infinite: all at once.  Rows keep their order."""
    data, sha256 = read_bytes(path)
    rng, at = np.random.default_rng(seed), 0.0
    rows = Collector("sharegpt", path, sha256)
    for line, cells in columns(path, data, {"input": input_column, "output": output_column}):
        rows.add(
            TraceRow(
                arrival_s=at,
                input_tokens=number(path, line, input_column, cells["input"]),
                output_tokens=number(path, line, output_column, cells["output"]),
            )
        )
        at += float(rng.exponential(1 / rate_per_s)) if math.isfinite(rate_per_s) else 0.0
    return rows.finish(limit)
