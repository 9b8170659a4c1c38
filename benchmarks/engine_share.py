"""How much of a step is not the step: host, policy, allocator, sampler and text beside the call that runs the model.

    python benchmarks/engine_share.py [--rows 1 16] [--depth 1 2] [--new-tokens 128] [--threads N] [--set KEY=VALUE]

The whole engine decodes so many requests at once; from one call of the network to the next is a period, and what the
call itself does not fill is overhead.  Medians over the steps in which every request has one token; of ``sampling``
and of the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from itertools import pairwise
from typing import Any

from throughput import ask, prompts

from mainspring import Engine
from mainspring.plugins.config_file import load
from mainspring.plugins.executors.native import NativeExecutor


def watch(calls: list[tuple[int, float, float, float]]) -> None:
    """From now on native executors note (tokens, begin, end of the network's call, end of the execution)."""
    execute = NativeExecutor.execute

    def watched(self: NativeExecutor, launch: Any, sample: Any) -> Any:
        assert self._loaded is not None
        network = self._loaded.network
        forward, seen = network.forward, []

        def timed(batch: Any) -> Any:
            begun = time.perf_counter()
            made = forward(batch)
            seen.append((batch.num_tokens, begun, time.perf_counter()))
            return made

        network.forward = timed  # type: ignore[method-assign]
        try:
            result = execute(self, launch, sample)
        finally:
            network.forward = forward  # type: ignore[method-assign]
        calls.extend((*one, time.perf_counter()) for one in seen)
        return result

    NativeExecutor.execute = watched  # type: ignore[method-assign]


async def measure(args: argparse.Namespace, rows: int, depth: int, calls: list[Any]) -> str:
    """One line of the table."""
    overrides = [f"executor.threads={args.threads}", f"scheduler.depth={depth}", "executor.use=native", "journal.path="]
    async with Engine(load(None, [*overrides, *args.set]).config) as engine:
        await asyncio.gather(*(ask(engine, ids, 4) for ids in prompts(rows, 16)))
        calls.clear()
        await asyncio.gather(*(ask(engine, ids, args.new_tokens) for ids in prompts(rows, args.prompt_tokens)))
    pairs = [(a, b) for a, b in pairwise(calls) if a[0] == b[0] == rows]
    period = statistics.median(b[1] - a[1] for a, b in pairs)
    call = statistics.median(a[2] - a[1] for a, _ in pairs)
    behind = statistics.median(a[3] - a[2] for a, _ in pairs)
    share = statistics.median(1 - (a[2] - a[1]) / (b[1] - a[1]) for a, b in pairs)
    cells = [f"{1e3 * value:.3f}" for value in (period, call, behind, period - call - behind)]
    return f"| {rows} | {depth} | " + " | ".join(cells) + f" | {100 * share:.1f} % |"


def main() -> None:
    """Parse, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--depth", type=int, nargs="+", choices=(1, 2), default=[1, 2])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for mainspring")
    args = parser.parse_args()
    calls: list[Any] = []
    watch(calls)
    print("ms by step\n| rows | depth | period | call | sampling | other | overhead |\n|---|---|---|---|---|---|---|")
    for depth in args.depth:
        for rows in args.rows:
            print(asyncio.run(measure(args, rows, depth, calls)), flush=True)


if __name__ == "__main__":
    main()
