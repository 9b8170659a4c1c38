"""Steps of the native kernels next to the torch backend, in one interleaved run: only the ratios mean anything.

    python benchmarks/native_kernels.py [--rows 1 4 16 64] [--context 192] [--contexts 512 2048] [--prefill 1024]
        [--formats torch auto fast] [--threads N] [--repeats 15] [--cpu-time] [--json FILE]

Bare steps: a batch that has been built, to the best token of each row.  What lies behind has been computed.
``--contexts`` adds steps of one row behind so many tokens.  Times are the least and the median of the repeats,
milliseconds.  ``floor`` is the time in which the machine reads what the step has to read at least, the packed weights
of that format and the keys and values, measured in turn with the steps by threads that do nothing else; in brackets the
share of the step's median that it is.  Where a shortlist finds the best token, the weights of the floor are those of
the coarse head; ``whole`` is the floor with all of the head, which other ways to decode have to read.
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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from parts.steps import FORMATS, blocks_for, load, network_of, step

from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.native_draw import prepare_draw
from mainspring.samplers.plan import SamplingPlan


class Point(NamedTuple):
    """``rows`` sequences of ``count`` new tokens behind ``context`` others."""

    rows: int
    context: int
    count: int = 1

    def __str__(self) -> str:
        behind = f"{self.rows} row{'s' * (self.rows > 1)} behind {self.context}"
        return behind if self.context else f"prompt of {self.count}"

    def batch(self) -> StepBatch:
        """The step."""
        return step([(self.context, row) for row in self._ids(self.count, 0)])

    def before(self) -> StepBatch | None:
        """What computes that which lies behind."""
        if not self.context:
            return None
        return step([(0, row) for row in self._ids(self.context, 5)], room=self.context + self.count)

    def _ids(self, count: int, first: int) -> list[list[int]]:
        return (np.arange(first, first + self.rows * count) * 7919 % 40000).reshape(self.rows, count).tolist()


class Format:
    """A loaded network, and what a step of it reads."""

    def __init__(self, name: str, threads: int, num_blocks: int) -> None:
        self._executor = load(name, threads, num_blocks)  # keeps the network's memory
        self.network = network_of(self._executor)
        self._room = np.ones(0, np.float32)
        self._saved = 0  # floats that a shortlist leaves unread
        self.native = FORMATS[name][0] is NativeExecutor

    def prepare(self, point: Point) -> None:
        """Compute what lies behind ``point``; make room to read as much as its step does."""
        before = point.before()
        if before is not None:
            self.network.forward(before)
        if not self.native:
            return
        ops, kv, shortlist = self.network.ops, self.network.ops.kv, self.network.shortlist
        weights = ops.weight_bytes() - self.network.model.embedding.nbytes  # of the embedding, rows only
        coarse = 0 if shortlist is None else shortlist.nbytes
        heads = kv.num_kv_heads * ops.kv_shape.num_layers * point.rows * (point.context + point.count)
        tokens = heads * 2 * kv.padded_dim * ops.keys.element_size()
        self._room = np.ones((weights - coarse + tokens) // 4, np.float32)
        self._saved = 0 if shortlist is None else (self.network.model.head.nbytes - coarse) // 4

    def step(self, batch: StepBatch) -> Callable[[], object]:
        """What computes it, to the best token of each row."""
        if not self.native:
            return lambda: self.network.forward(batch).argmax(-1)
        ops, model, rows = self.network.ops, self.network.struct, len(batch.logits_rows)
        return partial(ops.step, model, ops.prepare(batch), prepare_draw(greedy_plan(rows), rows, model.vocab))

    def read(self) -> None:
        """As many bytes as it has to, on all threads."""
        self._read(self._room.size - self._saved)

    def read_whole(self) -> None:
        """The same with all of the head."""
        self._read(self._room.size)

    def _read(self, count: int) -> None:
        ops = self.network.ops
        ops._library.ms_read(ops._engine, self._room.ctypes.data, count)


def greedy_plan(rows: int) -> SamplingPlan:
    """The best token of so many rows."""
    ones, none = np.ones(rows, np.float32), np.zeros(0, np.int64)
    zeros = np.zeros(rows, np.float32)
    return SamplingPlan(
        temperature=zeros, top_k=np.zeros(rows, np.int32), top_p=ones, min_p=zeros, uniform=np.zeros(rows),
        greedy=np.ones(rows, np.bool_), banned_rows=none, banned_ids=none,
    )  # fmt: skip


def measure(
    formats: dict[str, Format], point: Point, repeats: int, clock: Callable[[], float]
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of ``step`` and, of native formats, ``floor`` and ``whole`` by format, all in turn."""
    batch = point.batch()
    out: dict[str, dict[str, list[float]]] = {name: {"step": [], "floor": [], "whole": []} for name in formats}
    calls: dict[str, dict[str, Callable[[], object]]] = {}
    for name, kind in formats.items():
        kind.prepare(point)
        calls[name] = {"step": kind.step(batch)}
        if kind.native:
            calls[name] |= {"floor": kind.read, "whole": kind.read_whole}
    for repeat in range(repeats + 1):
        for name in formats:
            for what, call in calls[name].items():
                begun = clock()
                call()
                if repeat:  # the first warms up
                    out[name][what].append((clock() - begun) * 1e3)
    return out


def cell(times: dict[str, list[float]]) -> str:
    """For people."""
    middle = statistics.median(times["step"])
    floors = [
        f", {name} {100 * statistics.median(times[name]) / middle:.0f} %"
        for name in times
        if name != "step" and times[name]
    ]
    return f"{min(times['step']):.2f} ({middle:.2f}){''.join(floors)}"


def main() -> None:
    """Parse, measure, print a table with ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--contexts", type=int, nargs="*", default=[])
    parser.add_argument("--prefill", type=int, nargs="*", default=[1024], help="tokens of a prompt in one step")
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), metavar="NAME",
                        default=["torch", "fp32", "bf16", "auto", "fast"])  # fmt: skip
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    threads, clock = (1, time.thread_time) if args.cpu_time else (args.threads, time.perf_counter)
    points = [Point(rows, args.context) for rows in args.rows]
    points += [Point(1, context) for context in args.contexts]
    points += [Point(1, 0, count) for count in args.prefill]
    most = max(point.rows * blocks_for(point.context + point.count) for point in points)
    formats = {name: Format(name, threads, most) for name in args.formats}
    print(f"{threads} threads, {args.repeats} repeats; ms: least (median)\n")
    reference = args.formats[0]
    print("| step | " + " | ".join(args.formats) + f" | {reference} / format |")
    print("|---|" + "---|" * (len(args.formats) + 1))
    found = []
    with torch.inference_mode():
        for point in points:
            repeats = max(3, args.repeats // 4) if point.rows * point.count > 64 else args.repeats
            times = measure(formats, point, repeats, clock)
            found.append({"rows": point.rows, "context": point.context, "count": point.count, "ms": times})
            least = {name: min(part["step"]) for name, part in times.items()}
            ratios = " ".join(f"{least[reference] / value:.2f}" for value in least.values())
            print(f"| {point} | " + " | ".join(map(cell, times.values())) + f" | {ratios} |", flush=True)
    if args.json:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
