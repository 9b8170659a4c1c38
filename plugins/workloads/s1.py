"""S1, chat with shared system prompts: 64 groups of requests, popular and rare, more prompts than the cache holds."""

from __future__ import annotations

from ..traces.canonical import TraceRow
from .draws import Ids, generator, lognormal, poisson, zipf_choices
from .scenario import Guard, Scenario

GROUPS, SYSTEM, QUESTION, ANSWER, LONGEST = 64, 2048, 128, 256, 1024


def make(size: str, seed: int, num_requests: int = 0, rate_per_s: float = 5.0, groups_in_cache: int = 20) -> Scenario:
    """Zipf(1) popularity; system prompt 2,048 tokens, question lognormal around 128, answer around 256 (``full``)."""
    full = size == "full"
    scale = 1 if full else 16
    count = num_requests or (1024 if full else 200)
    system, longest, rng = SYSTEM // scale, LONGEST // scale, generator(seed, "S1")
    chosen, block = zipf_choices(rng, count, GROUPS), 16
    ids = Ids()
    prompts = [ids.take(system // block) for _ in range(GROUPS)]
    rows = []
    for at, group in zip(poisson(rng, count, rate_per_s), chosen, strict=True):
        question = lognormal(rng, QUESTION / scale, 0.6, 1, longest)
        rows.append(
            TraceRow(
                arrival_s=at,
                input_tokens=system + question,
                output_tokens=lognormal(rng, ANSWER / scale, 0.7, 1, longest),
                prefix_blocks=prompts[group],
                block_tokens=block,
                slo="rare" if group >= GROUPS * 3 // 4 else "popular",
            )
        )
    running = 32 * (QUESTION + ANSWER) // scale
    return Scenario(
        name="S1",
        title="Chat with shared system prompts",
        size=size,
        seed=seed,
        rows=tuple(rows),
        kv_tokens=groups_in_cache * system + running + 32 * block,
        max_output=longest,
        scheduler={"max_running": 32, "token_budget": 512 if full else 64},
        primary=("ttft_mean", "hit_rate"),
        guards=(Guard(metric="ttft_p99@rare"),),
        rate_per_s=rate_per_s,
        notes="With room for all 64 prompts every policy hits; with plain fcfs and few groups too.",
    )


def hit_rate_bound(scenario: Scenario) -> float:
    """The largest share of prompt tokens that any order can find in the cache: each group that occurs is computed once,
    each question every time, and only whole blocks are found."""
    size, found, total, seen = scenario.block_size, 0, 0, set[tuple[int, ...]]()
    for row in scenario.rows:
        shared = min(len(row.prefix_blocks) * row.block_tokens, row.input_tokens - 1)
        found += shared // size * size if row.prefix_blocks in seen else 0
        seen.add(row.prefix_blocks)
        total += row.input_tokens
    return found / total
