"""Steps of the native kernels next to the torch backend, in one interleaved run: only the ratios mean anything.

    python benchmarks/native_kernels.py [--rows 1 4 16 64] [--context 192] [--prefill 1024] [--formats torch auto fast]
        [--threads N] [--repeats 15] [--cpu-time] [--json FILE]

Bare steps: a batch that has been built, to logits.  Times are the least and the median of the repeats, milliseconds.
``floor`` is the time in which the machine reads the weights of that format once, measured in the same run.
``--cpu-time`` counts the processor time of one thread instead of wall time: it says what the code costs on a machine
that others are using too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config

BLOCK = 16
#: Name -> executor and its options.
FORMATS: dict[str, tuple[type[TorchExecutor], dict[str, str]]] = {
    "torch": (TorchExecutor, {"weights": "fp32", "dtype": "fp32"}),
    "fp32": (NativeExecutor, {"dtype": "fp32"}),
    "bf16": (NativeExecutor, {"dtype": "bf16"}),
    "auto": (NativeExecutor, {}),
    "fast": (NativeExecutor, {"dtype": "fast"}),
    "fast-kv-bf16": (NativeExecutor, {"dtype": "fast", "kv_dtype": "bf16"}),
}


def batch(rows: int, start: int, count: int) -> StepBatch:
    """``rows`` sequences of ``count`` new tokens behind ``start``, each with its own blocks; the last ids sample."""
    per_row = -(-(start + count) // BLOCK)
    tables = np.arange(rows * per_row, dtype=np.int32).reshape(rows, per_row)
    positions = np.tile(np.arange(start, start + count, dtype=np.int32), rows)
    owner = np.repeat(np.arange(rows), count)
    cu = np.arange(rows + 1, dtype=np.int32) * count
    return StepBatch(
        ids=(np.arange(rows * count, dtype=np.int32) * 7919 % 40000).astype(np.int32),
        positions=positions,
        slot_mapping=(tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32),
        cu_seqlens=cu,
        context_lens=np.full(rows, start + count, np.int32),
        block_tables=tables,
        logits_rows=cu[1:] - 1,
        num_rows=rows,
        sampling_rids=tuple(map(str, range(rows))),
    )


def load(name: str, threads: int, num_blocks: int) -> Any:
    """The network of a format, and the bytes of its weights."""
    kind, options = FORMATS[name]
    config = Config(
        executor=ExecutorConfig(threads=threads, **({"kv_dtype": "fp32"} | options)),
        allocator=AllocatorConfig(block_size=BLOCK, num_blocks=num_blocks),
    )
    executor = kind(None, config)
    executor.load([].append)
    assert executor._loaded is not None
    return executor._loaded.network


def measure(
    networks: dict[str, Any], step: StepBatch, repeats: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Milliseconds of ``step`` by format, all formats in turn."""
    out: dict[str, list[float]] = {name: [] for name in networks}
    for repeat in range(repeats + 1):
        for name, network in networks.items():
            begun = clock()
            network.forward(step)
            if repeat:  # the first warms up
                out[name].append((clock() - begun) * 1e3)
    return out


def floor_ms(network: Any, repeats: int, clock: Callable[[], float]) -> float:
    """The least time in which the weights' bytes were read once; the embedding is not read, but for its rows."""
    ops = network.ops
    room = np.ones((ops.weight_bytes() - network.model.embedding.nbytes) // 4, np.float32)
    times = []
    for _ in range(repeats):
        begun = clock()
        ops._library.ms_read(ops._engine, room.ctypes.data, room.size)
        times.append((clock() - begun) * 1e3)
    return min(times)


def main() -> None:
    """Parse, measure, print a table with ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--prefill", type=int, nargs="*", default=[1024], help="tokens of a prompt in one step")
    parser.add_argument(
        "--formats", nargs="+", choices=list(FORMATS), default=["torch", "fp32", "bf16", "auto", "fast"]
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    threads, clock = (1, time.thread_time) if args.cpu_time else (args.threads, time.perf_counter)
    most = max([*(rows * (args.context + 1) for rows in args.rows), *args.prefill, 1])
    networks = {name: load(name, threads, 2 * -(-most // BLOCK) + max([*args.rows, 1])) for name in args.formats}
    print(f"{threads} threads, context {args.context}, {args.repeats} repeats; ms: least (median)\n")
    reference = args.formats[0]
    print("| step | " + " | ".join(args.formats) + f" | {reference} / format |")
    print("|---|" + "---|" * (len(args.formats) + 1))
    found: dict[str, dict[str, list[float]]] = {}
    steps = {f"{rows} rows": batch(rows, args.context, 1) for rows in args.rows}
    steps |= {f"prompt of {count}": batch(1, 0, count) for count in args.prefill}
    with torch.inference_mode():
        for title, step in steps.items():
            repeats = max(3, args.repeats // 4) if step.num_tokens > 64 else args.repeats
            found[title] = times = measure(networks, step, repeats, clock)
            cells = [f"{min(part):.2f} ({statistics.median(part):.2f})" for part in times.values()]
            ratios = [f"{min(times[reference]) / min(part):.2f}" for part in times.values()]
            print(f"| {title} | " + " | ".join(cells) + " | " + " ".join(ratios) + " |", flush=True)
    native = {name: part for name, part in networks.items() if FORMATS[name][0] is NativeExecutor}
    floors = {name: floor_ms(part, args.repeats, clock) for name, part in native.items()}
    print("\nfloor of one row, ms: " + ", ".join(f"{name} {value:.2f}" for name, value in floors.items()))
    if args.json:
        args.json.write_text(json.dumps({"floors": floors, "steps": found}))


if __name__ == "__main__":
    main()
