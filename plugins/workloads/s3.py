"""S3, questions about long documents: several people ask about the same one within minutes."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import Ids, generator, log_uniform, poisson
from .scenario import Guard, Scenario

WITHIN_S, QUESTION = 120.0, 50


def make(size: str, seed: int, documents: int = 0, rate_per_s: float = 2.0, documents_in_cache: int = 6) -> Scenario:
    """50 documents of 8 k to 32 k tokens, 4 to 10 questions each within 2 minutes, 100 to 300 tokens out."""
    scale, count = (1, documents or 50) if size == "full" else (16, documents or 28)
    rng, ids, block = generator(seed, "S3"), Ids(), 16
    rows, lengths = [], []
    for start in poisson(rng, count, rate_per_s / 7):
        length = log_uniform(rng, 8192 / scale, 32768 / scale)
        lengths.append(length)
        blocks = ids.take(length // block)
        rows += [
            TraceRow(
                arrival_s=start + float(rng.uniform(0, WITHIN_S)),
                input_tokens=length + max(1, QUESTION // scale),
                output_tokens=max(1, round(rng.uniform(100, 300) / scale)),
                prefix_blocks=blocks,
                block_tokens=block,
            )
            for _ in range(int(rng.integers(4, 11)))
        ]
    rows.sort(key=lambda row: row.arrival_s)
    return Scenario(
        name="S3",
        title="Questions about long documents",
        size=size,
        seed=seed,
        rows=tuple(rows),
        kv_tokens=max(documents_in_cache * sum(lengths) // count, max(lengths) * 3 // 2),
        max_output=-(-300 // scale),
        scheduler={"max_running": 32, "token_budget": 512 if size == "full" else 64},
        primary=("itl_p99", "throughput"),
        guards=(Guard(metric="ttft_mean"),),
        rate_per_s=rate_per_s,
        notes="A small token budget always improves the time between tokens and always costs time to the first one.",
    )
