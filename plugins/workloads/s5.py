"""S5, bursts: long silence, then many requests in a second, as the traffic of code completion is."""

from __future__ import annotations

from typing import Literal

from ..traces.canonical import TraceRow
from .draws import gamma_gaps, generator, on_off
from .lengths import draw_length, longest
from .scenario import Guard, Scenario, Slo

Arrivals = Literal["gamma", "on_off"]


def make(
    size: str, seed: int, num_requests: int = 0, rate_per_s: float = 3.0, arrivals: Arrivals = "gamma"
) -> Scenario:
    """Lengths of the Azure code trace.  ``arrivals``: ``gamma`` gaps with CV 4, or ``on_off``: 2 s at five times the
    rate, 8 s of nothing."""
    full = size == "full"
    scale, count = (1, num_requests or 2000) if full else (16, num_requests or 200)
    rng = generator(seed, "S5")
    times = (
        gamma_gaps(rng, count, rate_per_s, 1 / 16) if arrivals == "gamma" else on_off(rng, count, rate_per_s, 2.0, 8.0)
    )
    rows = tuple(
        TraceRow(
            arrival_s=at,
            input_tokens=draw_length(rng, "azure_code", "input", scale),
            output_tokens=draw_length(rng, "azure_code", "output", scale),
        )
        for at in times
    )
    sizes = [row.input_tokens + row.output_tokens for row in rows]
    return Scenario(
        name="S5",
        title="Bursts",
        size=size,
        seed=seed,
        rows=rows,
        kv_tokens=max(32 * sum(sizes) // count, 2 * max(sizes)),
        max_output=longest("azure_code", "output", scale),
        scheduler={"max_running": 64, "token_budget": 1024 if full else 64},
        slo={"": Slo(ttft_s=1.0, tpot_s=0.1)},
        primary=("ttft_p99", "attainment"),
        guards=(Guard(metric="throughput"),),
        rate_per_s=rate_per_s,
        notes="The mean load says nothing; fewer than 30 bursts give no interval.",
    )
