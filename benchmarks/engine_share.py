"""How much of a step is not the step: host, policy, allocator, sampler and text beside the call that runs the model.

    python benchmarks/engine_share.py [--rows 1 16] [--waiting 0] [--depth 1 auto] [--new-tokens 128] [--threads N]
        [--set KEY=VALUE] [--json FILE]

The whole engine decodes so many requests at once while ``--waiting`` others wait for their turn; from one call of the
network to the next is a period, and what the call itself does not fill is overhead.  Medians over the steps in which
every running request has one token, in milliseconds; ``sampling`` and the rest of the overhead apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from throughput import ask, prompts

from mainspring import Engine
from mainspring.plugins.config_file import load
from mainspring.plugins.event_loop import run
from mainspring.plugins.executors.native_ops import NativeOps


class Call(NamedTuple):
    """One step: tokens; begin of the network, its end and that of the draw, in seconds."""

    tokens: int
    begun: float
    ended: float
    sampled: float


class Watched:
    """A library of native kernels that notes its steps."""

    def __init__(self, library: Any, steps: list[tuple[int, Any]]) -> None:
        self._library, self._steps = library, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def ms_step(self, *arguments: Any) -> None:
        self._steps.append((arguments[2].num_tokens, arguments[5]))
        self._library.ms_step(*arguments)

    def ms_begin(self, *arguments: Any) -> int:
        self._steps.append((arguments[2].num_tokens, arguments[5]))
        count: int = self._library.ms_begin(*arguments)
        return count


def watch(steps: list[tuple[int, Any]]) -> None:
    """From now on native operators note their steps: tokens, and the three moments."""
    made = NativeOps.__init__

    def watched(self: NativeOps, *arguments: Any, library: Any, **others: Any) -> None:
        made(self, *arguments, library=Watched(library, steps), **others)

    NativeOps.__init__ = watched  # type: ignore[method-assign]


async def measure(args: argparse.Namespace, rows: int, waiting: int, depth: str, steps: list[Any]) -> dict[str, float]:
    """Milliseconds of a step's parts."""
    overrides = [f"executor.threads={args.threads}", f"scheduler.depth={depth}", "executor.use=native", "journal.path=",
                 f"scheduler.max_running={rows}", "scheduler.max_waiting=100000"]  # fmt: skip
    async with Engine(load(None, [*overrides, *args.set]).config) as engine:
        await asyncio.gather(*(ask(engine, ids, 4) for ids in prompts(rows, 16)))
        running = asyncio.gather(*(ask(engine, ids, args.new_tokens) for ids in prompts(rows, args.prompt_tokens)))
        await asyncio.sleep(0.5)  # these come first
        others = [asyncio.create_task(ask(engine, [1] * 16, 1)) for _ in range(waiting)]
        await asyncio.sleep(0.1)
        steps.clear()
        await running
        known = [Call(tokens, *moments) for tokens, moments in steps]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    pairs = [(a, b) for a, b in pairwise(known) if a.tokens == b.tokens == rows]
    parts = {
        "period": statistics.median(b.begun - a.begun for a, b in pairs),
        "call": statistics.median(a.ended - a.begun for a, _ in pairs),
        "sampling": statistics.median(a.sampled - a.ended for a, _ in pairs),
        "share": statistics.median(1 - (a.ended - a.begun) / (b.begun - a.begun) for a, b in pairs) / 1e3,
    }
    return {"rows": rows, "waiting": waiting, "depth": depth} | {name: 1e3 * part for name, part in parts.items()}


def main() -> None:
    """Parse, measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--waiting", type=int, nargs="+", default=[0])
    parser.add_argument("--depth", nargs="+", choices=("1", "2", "auto"), default=["1", "auto"])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for mainspring")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    steps: list[tuple[int, Any]] = []
    watch(steps)
    print("| rows | waiting | depth | step | call | sampling | other | overhead |\n|---|---|---|---|---|---|---|---|")
    found = []
    for depth in args.depth:
        for rows in args.rows:
            for waiting in args.waiting:
                found.append(made := run(measure(args, rows, waiting, depth, steps)))
                other = made["period"] - made["call"] - made["sampling"]
                cells = [f"{value:.3f}" for value in (made["period"], made["call"], made["sampling"], other)]
                print(f"| {rows} | {waiting} | {depth} | " + " | ".join(cells) + f" | {100 * made['share']:.1f} % |",
                      flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
