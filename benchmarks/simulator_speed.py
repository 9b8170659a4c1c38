"""How fast virtual time runs: 40 minutes of Azure chat traffic (14,176 requests) with ``fcfs``, and parts of it.

Run ``python benchmarks/simulator_speed.py [--requests N ...] [--allocator NAME]``.  One core; processor time of this
process, so that others on the machine count as little as possible.  The time per token should not grow with requests.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import msgspec

from mainspring.core.config import Config
from mainspring.plugins.simulation import play
from mainspring.plugins.simulation.play import configure
from mainspring.plugins.step_time import load
from mainspring.plugins.traces.formats import read
from mainspring.plugins.workloads.scenario import from_trace

TRACE = Path(__file__).parents[1] / "tests/data/traces/AzureLLMInferenceTrace_conv.first40min.csv.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[3544, 7088, 14176])
    parser.add_argument("--allocator", default="paged")
    args = parser.parse_args()
    machine = load("rtx-pro-6000_llama-3.1-8b")
    print("| requests | output tokens | steps | simulated, s | processor time, s | us per token |")
    print("|---|---|---|---|---|---|")
    for count in args.requests:
        rows = read("azure", TRACE, limit=count).rows
        made = from_trace(rows, 400_000, 1024, scheduler={"token_budget": 2048, "max_running": 256, "depth": 1})
        config = configure(Config(), made)
        config = msgspec.structs.replace(
            config, allocator=msgspec.structs.replace(config.allocator, use=args.allocator)
        )
        started = time.process_time()
        run = play(config, made, machine.step)
        took = time.process_time() - started
        tokens = sum(one.output_tokens for one in run.requests)
        assert all(one.complete for one in run.requests)
        print(
            f"| {count:,} | {tokens:,} | {len(run.steps):,} | {run.makespan_s:,.0f} | {took:.1f} |"
            f" {took / tokens * 1e6:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
