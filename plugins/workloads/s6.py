"""S6, long and short prompts in one queue: one in ten is a hundred times as long."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import generator, poisson
from .scenario import Guard, Scenario


def make(size: str, seed: int, num_requests: int = 0, rate_per_s: float = 4.0, long_share: float = 0.1) -> Scenario:
    """90 % with 64 to 256 tokens in and out, 10 % with 8 k to 16 k in and 256 out; Poisson."""
    full = size == "full"
    scale, count = (1, num_requests or 1000) if full else (16, num_requests or 200)
    rng, rows = generator(seed, "S6"), []
    for at in poisson(rng, count, rate_per_s):
        long = bool(rng.random() < long_share)
        low, high = (8192, 16384) if long else (64, 256)
        rows.append(
            TraceRow(
                arrival_s=at,
                input_tokens=int(rng.integers(low // scale, high // scale + 1)),
                output_tokens=256 // scale if long else int(rng.integers(64 // scale, 256 // scale + 1)),
                slo="long" if long else "short",
            )
        )
    mean = sum(row.input_tokens + row.output_tokens for row in rows) // count
    return Scenario(
        name="S6",
        title="Long and short prompts in one queue",
        size=size,
        seed=seed,
        rows=tuple(rows),
        kv_tokens=max(64 * mean, 2 * (16384 + 256) // scale),
        max_output=256 // scale,
        scheduler={"max_running": 64, "token_budget": 512 if full else 64},
        primary=("ttft_p99@short", "slowdown_mean"),
        guards=(Guard(metric="ttft_p99@long", tolerance=1.0),),
        rate_per_s=rate_per_s,
        notes="Mean TTFT alone rewards starving the long tenth; its p99 may at most double.",
    )
