"""S9, people who wait for an answer, and a batch of work behind them that is due within the hour."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import generator, poisson
from .lengths import draw_length, longest
from .scenario import Guard, Scenario, Slo

DEADLINE_S = {"interactive": 60.0, "batch": 3600.0}


def make(size: str, seed: int, num_requests: int = 0, batch_requests: int = 0, rate_per_s: float = 2.0) -> Scenario:
    """Interactive: lengths of Azure chat, Poisson at ``rate_per_s``, 500 ms to the first token and 50 ms per token.
    Batch: lengths of ShareGPT, all there at the start.

    Policies see a deadline of a minute, or an hour, after arrival: it only orders, as long as nobody waits so long.
    """
    full = size == "full"
    scale = 1 if full else 16
    many, batch = num_requests or (1000 if full else 120), batch_requests or (2000 if full else 80)
    rng = generator(seed, "S9")
    rows = [
        TraceRow(
            arrival_s=0.0,
            input_tokens=draw_length(rng, "sharegpt", "input", scale),
            output_tokens=draw_length(rng, "sharegpt", "output", scale),
            slo="batch",
            priority=1,
        )
        for _ in range(batch)
    ]
    rows += [
        TraceRow(
            arrival_s=at,
            input_tokens=draw_length(rng, "azure_chat", "input", scale),
            output_tokens=draw_length(rng, "azure_chat", "output", scale),
            slo="interactive",
        )
        for at in poisson(rng, many, rate_per_s)
    ]
    rows.sort(key=lambda row: row.arrival_s)
    sizes = [row.input_tokens + row.output_tokens for row in rows]
    return Scenario(
        name="S9",
        title="Interactive requests before a batch",
        size=size,
        seed=seed,
        rows=tuple(rows),
        kv_tokens=max(32 * sum(sizes) // len(sizes), 2 * max(sizes)),
        max_output=max(longest("azure_chat", "output", scale), longest("sharegpt", "output", scale)),
        scheduler={"max_running": 64, "token_budget": 512 if full else 64},
        slo={
            "interactive": Slo(ttft_s=0.5, tpot_s=0.05, deadline_s=DEADLINE_S["interactive"]),
            "batch": Slo(e2e_s=DEADLINE_S["batch"], deadline_s=DEADLINE_S["batch"]),
        },
        primary=("goodput@interactive", "throughput@batch"),
        guards=(Guard(metric="attainment@batch"),),
        rate_per_s=rate_per_s,
        notes="Dropping late requests raises goodput: what does not end is counted as missed.",
    )
