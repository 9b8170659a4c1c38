"""Output tokens per second, time to first token and time per output token, next to transformers' ``generate``.

    python benchmarks/throughput.py [--quick] [--concurrency 1 4 16 64] [--dtype bf16] [--reference-dtype bf16 fp32]

The whole engine runs in this process; all requests of a level are sent at once, greedy, end-of-sequence ignored.
The reference decodes the same prompts as one batch, in the same run, with the same number of threads.  Both are warmed
up first.  TTFT and TPOT are medians over the requests of a level, in milliseconds.  ``--reference-dtype`` may name both
formats: on a CPU without bf16 instructions float32 is the reference's faster one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from parts.reference import greedy, transformers_model

from mainspring import Engine
from mainspring.plugins.config_file import load
from mainspring.plugins.event_loop import run
from mainspring.plugins.text.events import Delta

DTYPES = ("bf16", "fp32")


class Level(NamedTuple):
    """What one concurrency gave."""

    tokens_per_s: float
    ttft_ms: float
    tpot_ms: float


def prompts(count: int, length: int) -> list[list[int]]:
    """Random ids: nothing to share, nothing to end early."""
    source = random.Random(count)
    return [[source.randrange(100, 40000) for _ in range(length)] for _ in range(count)]


async def ask(engine: Engine, ids: list[int], new_tokens: int) -> tuple[float, float, int]:
    """(seconds to the first id, seconds to the end, ids received) of one request."""
    request = {
        "token_ids": ids,
        "max_tokens": new_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    begun, first, count = time.perf_counter(), 0.0, 0
    async for event in engine.stream(request):
        got = len(getattr(event, "token_ids", ()))
        if got and isinstance(event, Delta) and not first:
            first = time.perf_counter() - begun
        count += got
    return first, time.perf_counter() - begun, count


async def measure_engine(overrides: list[str], levels: list[int], prompt: int, new_tokens: int) -> dict[int, Level]:
    """Every level on one engine."""
    out = {}
    async with Engine(load(None, overrides).config, progress=lambda line: print("  " + line)) as engine:
        await asyncio.gather(*(ask(engine, ids, 4) for ids in prompts(max(levels), prompt)))
        for level in levels:
            begun = time.perf_counter()
            rows = await asyncio.gather(*(ask(engine, ids, new_tokens) for ids in prompts(level, prompt)))
            seconds = time.perf_counter() - begun
            assert all(count == new_tokens for _, _, count in rows), [count for _, _, count in rows]
            tpot = [(end - first) / max(1, new_tokens - 1) for first, end, _ in rows]
            ttft = statistics.median(first for first, _, _ in rows)
            out[level] = Level(level * new_tokens / seconds, ttft * 1e3, statistics.median(tpot) * 1e3)
    return out


def measure_reference(dtype: str, levels: list[int], prompt: int, new_tokens: int) -> Iterator[tuple[int, Level]]:
    """transformers on the same weights, one batch per level."""
    import torch

    model = transformers_model(dtype)

    def generate(ids: Any, count: int) -> float:
        begun = time.perf_counter()
        made = greedy(model, ids, count)
        assert made.shape[1] == ids.shape[1] + count
        return time.perf_counter() - begun

    for level in levels:
        ids = torch.tensor(prompts(level, prompt))
        ttft = min(generate(ids, 1) for _ in range(2))
        seconds = generate(ids, new_tokens)
        yield level, Level(level * new_tokens / seconds, ttft * 1e3, (seconds - ttft) / max(1, new_tokens - 1) * 1e3)


def row(name: str, level: int, made: Level, ratio: str = "") -> str:
    """One line of the table."""
    return f"| {name} | {level} | {made.tokens_per_s:.1f} | {made.ttft_ms:.0f} | {made.tpot_ms:.1f} | {ratio} |"


def main() -> None:
    """Parse, measure, print a table with ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 and 8 requests of 32 + 32 tokens")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="bf16", help="of the engine")
    parser.add_argument("--reference-dtype", choices=DTYPES, nargs="*", default=["bf16"], help="none: no reference")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for mainspring")
    args = parser.parse_args()
    levels, prompt, new_tokens = args.concurrency, args.prompt_tokens, args.new_tokens
    if args.quick:
        levels, prompt, new_tokens = [1, 8], 32, 32
    overrides = [f"executor.threads={args.threads}", f"executor.dtype={args.dtype}", "journal.path=", *args.set]
    print(f"prompt {prompt} tokens, {new_tokens} new, {args.threads} threads")
    ours = run(measure_engine(overrides, levels, prompt, new_tokens))
    print("\n| engine | concurrency | tok/s | TTFT ms | TPOT ms | mainspring is |\n|---|---|---|---|---|---|")
    for level, made in ours.items():
        print(row(f"mainspring {args.dtype}", level, made))
    import torch

    torch.set_num_threads(args.threads)
    for dtype in args.reference_dtype:
        for level, made in measure_reference(dtype, levels, prompt, new_tokens):
            ratio = ours[level].tokens_per_s / made.tokens_per_s
            print(row(f"transformers {dtype}", level, made, f"{ratio:.2f}x"), flush=True)


if __name__ == "__main__":
    main()
