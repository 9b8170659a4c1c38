"""S7, outputs with a heavy tail, as reasoning models have them: most are short, a few are a hundred times longer."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import generator, pareto, poisson
from .scenario import Guard, Scenario

ALPHA, LEAST, MOST, PROMPT, RUNNING = 1.3, 64, 8192, 256, 64


def make(size: str, seed: int, num_requests: int = 0, rate_per_s: float = 2.0, kv_share: float = 0.4) -> Scenario:
    """Prompts of 256 tokens, outputs Pareto with exponent 1.3 from 64 to 8,192; KV for 40 % of what a full batch would
    need at its end."""
    full = size == "full"
    scale, count = (1, num_requests or 1000) if full else (16, num_requests or 200)
    rng = generator(seed, "S7")
    times = poisson(rng, count, rate_per_s)
    outputs = [pareto(rng, ALPHA, LEAST / scale, MOST / scale) for _ in range(count)]
    tail = sorted(outputs)[-max(1, count // 20)]
    rows = tuple(
        TraceRow(
            arrival_s=at, input_tokens=PROMPT // scale, output_tokens=output, slo="tail" if output >= tail else "body"
        )
        for at, output in zip(times, outputs, strict=True)
    )
    mean = sum(outputs) / count + PROMPT / scale
    return Scenario(
        name="S7",
        title="Outputs with a heavy tail",
        size=size,
        seed=seed,
        rows=rows,
        kv_tokens=max(round(kv_share * RUNNING * mean), 5 * (PROMPT + MOST) // scale // 4),
        max_output=MOST // scale,
        scheduler={"max_running": RUNNING, "token_budget": 512 if full else 64},
        primary=("normalized_mean", "preemption_rate"),
        guards=(Guard(metric="e2e_p99@tail"),),
        rate_per_s=rate_per_s,
        notes="A sample of 200 requests has two of the longest percent: no tail to speak of.",
    )
