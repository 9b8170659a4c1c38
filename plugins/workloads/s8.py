"""S8, eight tenants of whom one asks for far more than its share, goes idle, and returns."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import generator
from .scenario import Guard, Scenario

TENANTS, POLITE, ABUSE, LENGTH = 8, 0.5, 8.0, 256
#: (part of the time, load of tenant 0 in fair shares): all polite, an abuse, idle, and back.
PHASES = ((1 / 3, POLITE), (1 / 3, ABUSE), (1 / 6, 0.0), (1 / 6, ABUSE))


def make(size: str, seed: int, num_requests: int = 0, rate_per_s: float = 4.0) -> Scenario:
    """Seven tenants at half their fair share, tenant ``t0`` at eight times its own in the middle third.

    At a mean rate of 0.96 of capacity the middle third is loaded to 1.44.  All requests have 256 tokens in and out.
    """
    full = size == "full"
    scale, count = (1, num_requests or 1600) if full else (16, num_requests or 240)
    rng = generator(seed, "S8")
    mean_load = sum(part * ((TENANTS - 1) * POLITE + load) for part, load in PHASES)
    span = count / rate_per_s
    share = rate_per_s / mean_load  # requests per second of one fair share
    times: list[tuple[float, int]] = []
    start = 0.0
    for part, load in PHASES:
        for tenant in range(TENANTS):
            rate, at = share * (POLITE if tenant else load), start
            while rate and (at := at + float(rng.exponential(1 / rate))) < start + part * span:
                times.append((at, tenant))
        start += part * span
    times.sort()
    rows = tuple(
        TraceRow(
            arrival_s=at - times[0][0],
            input_tokens=LENGTH // scale,
            output_tokens=LENGTH // scale,
            tenant=f"t{tenant}",
            slo="polite" if tenant else "abuser",
        )
        for at, tenant in times
    )
    return Scenario(
        name="S8",
        title="Eight tenants, one of them greedy",
        size=size,
        seed=seed,
        rows=rows,
        kv_tokens=32 * 2 * LENGTH // scale,
        max_output=LENGTH // scale,
        scheduler={"max_running": 32, "token_budget": 512 if full else 64},
        primary=("ttft_p99@polite", "service_gap"),
        guards=(Guard(metric="throughput", tolerance=0.02),),
        rate_per_s=rate_per_s,
        notes="Equality of raw service punishes tenants that ask for little: only backlogged ones are compared.",
    )
