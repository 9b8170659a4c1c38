"""Run in a process of its own, with a sanitizer preloaded: whole steps of a library over ragged
shapes, with weights in every format, and tokens drawn from what comes out.

    python -m tests.native.sanitized LIBRARY SEED ROUNDS

Arguments come from NumPy arrays whose bytes behind the end the sanitizer guards; torch is not imported, since its own
threads would be reported.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

EXECUTORS = Path(__file__).parents[2] / "plugins" / "executors"


def load_abi() -> ModuleType:
    """``native_abi`` without its package, which would import torch."""
    spec = importlib.util.spec_from_file_location("native_abi", EXECUTORS / "native_abi.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


abi = load_abi()
#: What rows are drawn with: temperature, top-p, min-p, uniform, top-k.
COLUMNS = (
    ([0.0, 0.5, 1.0, 20.0], np.float64),
    ([0.0, 0.5, 1.0], np.float64),
    ([0.0, 0.1, 1.0], np.float64),
    ([0.0, 0.5, 1 - 2**-53], np.float64),
    ([0, 1, 5, 1000], np.int32),
)


class Run:
    """One random network and a few steps through it."""

    def __init__(self, library: Any, random: np.random.Generator) -> None:
        self._library, self.random = library, random
        self.kept: list[Any] = []  # whatever addresses point into
        self.engine = library.ms_open(int(random.integers(1, 4)))
        group = int(random.integers(1, 5))
        self.kv_heads = int(random.integers(1, 4))
        self.heads, self.dim = group * self.kv_heads, 2 * int(random.integers(1, 20))
        self.hidden, self.ffn, self.vocab = (int(random.integers(1, limit)) for limit in (120, 80, 500))
        self.block, self.blocks, self.layers = int(random.integers(1, 20)), 24, 2
        self.window = int(random.choice([0, 3, 70]))

    def array(self, *shape: int) -> Any:
        made = self.random.standard_normal(shape).astype(np.float32)
        self.kept.append(made)
        return made

    def linear(self, outputs: int, inputs: int, biased: bool = True) -> Any:
        kept_as, int8 = int(self.random.integers(0, 6)), int(self.random.integers(0, 2))
        source, data = abi.SRC_F32, self.array(outputs, inputs)
        bias = self.array(outputs).ctypes.data if biased else None
        panels = np.zeros(self._library.ms_segment_bytes(kept_as, outputs, inputs), np.uint8)
        segment = (abi.Segment * 1)(abi.Segment(panels.ctypes.data, bias, kept_as, outputs, inputs, 0))
        self._library.ms_pack(self.engine, segment[0], source, data.ctypes.data, 4 * inputs, None)
        self.kept += [panels, segment]
        return abi.Linear(segment, 1, outputs, inputs, int8 if biased else 0)

    def shortlist(self, head: Any) -> Any:
        """For some heads that may have one, with an order and units that need not make sense."""
        segment, few = head.segments[0], 32
        if segment.format in (abi.Q4_HALF, abi.Q4_FLOAT) or self.hidden <= few:
            return None
        linears = []
        for kept_as, width in ((abi.Q8_HALF, few), (abi.Q4_HALF, self.hidden - few)):
            panels = np.zeros(self._library.ms_segment_bytes(kept_as, self.vocab, width), np.uint8)
            part = (abi.Segment * 1)(abi.Segment(panels.ctypes.data, None, kept_as, self.vocab, width, 0))
            linears.append(abi.Linear(part, 1, self.vocab, width, int(kept_as == abi.Q4_HALF)))
            self.kept += [panels, part]
        order, measures = self.random.permutation(self.hidden).astype(np.int32), np.empty((3, self.vocab), np.float32)
        error = np.zeros(self.vocab, np.float32)
        made = abi.Shortlist(*linears, order.ctypes.data, error.ctypes.data, 1.0, 1.0)
        self._library.ms_pack_coarse(self.engine, c.byref(made), c.byref(segment), measures.ctypes.data)
        if self.random.integers(2):  # else lists are short, and tokens may be wrong
            error[:] = measures.max(0)
        self.kept += [order, error, made]
        return c.pointer(made)

    def model(self) -> Any:
        lanes = self._library.ms_lanes()
        padded = -(-self.dim // lanes) * lanes
        kv_format = int(self.random.integers(0, 4))
        size = (4, 2, 2, 1)[kv_format]
        slots = self.layers * self.blocks * self.kv_heads * self.block
        pools = [np.full(slots * padded * size, 0xFF, np.uint8) for _ in range(2)]
        scales = [np.full(slots, np.nan, np.float32) for _ in range(2)]
        self.kept += [*pools, *scales]
        kv = abi.KV(
            *(part.ctypes.data for part in (*pools, *scales)), kv_format,
            self.blocks, self.block, self.kv_heads, self.dim, padded,
        )  # fmt: skip
        q_width, kv_width = self.heads * self.dim, self.kv_heads * self.dim
        layers = (abi.Layer * self.layers)(
            *(
                abi.Layer(
                    *(self.array(size).ctypes.data for size in (self.hidden, self.hidden, self.dim, self.dim)),
                    self.linear(q_width + 2 * kv_width, self.hidden), self.linear(self.hidden, q_width),
                    self.linear(2 * self.ffn, self.hidden), self.linear(self.hidden, self.ffn), self.window, 0,
                )
                for _ in range(self.layers)
            )
        )  # fmt: skip
        table, head = self.array(self.vocab, self.hidden), self.linear(self.vocab, self.hidden, biased=False)
        self.kept.append(layers)
        return abi.Model(
            layers, self.array(self.hidden).ctypes.data,
            abi.Table(table.ctypes.data, 4 * self.hidden, abi.SRC_F32, self.hidden),
            head, self.shortlist(head), kv, self.layers, self.hidden, self.heads, self.ffn, self.vocab, 1e-5,
        )  # fmt: skip

    def steps(self) -> None:
        """Prompts in ragged chunks, a dummy row among them, over the whole pool."""
        model, random = self.model(), self.random
        room = self.blocks // 3 * self.block
        tables = random.permutation(self.blocks).astype(np.int32).reshape(3, -1)
        cos, sin = self.array(room, self.dim // 2), self.array(room, self.dim // 2)
        done = [0, 0, 0]
        before: tuple[Any, ...] = ()  # what the step that is under way uses
        for _ in range(4):
            counts = [int(random.integers(1, max(2, room // 3))) for _ in done]
            counts = [min(count, room - start) for count, start in zip(counts, done, strict=True)]
            rows = [row for row in range(3) if counts[row] > 0]
            if not rows:
                break
            spans = [np.arange(done[row], done[row] + counts[row]) for row in rows] + [np.arange(2)]
            positions = np.concatenate(spans).astype(np.int32)
            slots = [
                tables[row][span // self.block] * self.block + span % self.block
                for row, span in zip(rows, spans, strict=False)
            ]
            cu = np.cumsum([0, *map(len, spans)]).astype(np.int32)
            arrays = [
                random.integers(0, self.vocab, len(positions)).astype(np.int32), positions,
                np.concatenate([*slots, [-1, -1]]).astype(np.int32), cu,
                np.asarray([*(done[row] + counts[row] for row in rows), 0], np.int32),
                np.concatenate([tables[rows], np.full((1, tables.shape[1]), -1, np.int32)]),
                (cu[1:] - 1)[: int(random.integers(0, len(cu)))].copy(), cos, sin,
            ]  # fmt: skip
            logits = np.full((len(arrays[6]), self.vocab), np.nan, np.float32)
            batch = abi.Batch(
                *(part.ctypes.data for part in arrays), len(positions), len(cu) - 1, tables.shape[1], len(logits)
            )
            for row in rows:
                done[row] += counts[row]
            draw, kept = self.draw(*logits.shape)
            moments = (c.c_double * 3)()
            if random.integers(2):
                self.end(*before)
                before = ()
                self._library.ms_step(self.engine, c.byref(model), c.byref(batch), logits.ctypes.data, None, moments)
                assert np.isfinite(logits).all()
                draw.logits = logits.ctypes.data
                self._library.ms_draw(self.engine, c.byref(draw))
                drawn(kept, self.vocab)
                continue
            taken = min(len(before[1][-1]), len(positions)) if before else 0
            wanted = None if random.integers(4) else logits.ctypes.data
            takes = (abi.Take * taken)(*[abi.Take(at, at) for at in range(taken)])
            count = self._library.ms_begin(
                self.engine, c.byref(model), c.byref(batch), wanted, c.byref(draw),
                moments, before[1][-2].ctypes.data if before else None, takes, taken,
            )  # fmt: skip
            self.end(*before)
            before = count, kept, takes, arrays, logits, moments, before[1:2]  # whose ids it may be reading
        self.end(*before)

    def end(self, count: int = 0, kept: tuple[Any, ...] = (), *_: Any) -> None:
        """Wait for the step that is under way."""
        if kept:
            self._library.ms_wait(self.engine, count)
            drawn(kept, self.vocab)

    def draw(self, rows: int, vocab: int) -> tuple[Any, tuple[Any, ...]]:
        """One token of each row, with any parameters; and its arrays, at last ids and states."""
        random = self.random
        columns = [np.asarray(random.choice(values, rows), kind) for values, kind in COLUMNS]
        greedy = bool(random.integers(2))  # as most are: a shortlist may do
        if greedy:
            columns[0][:] = 0
        bans = [random.integers(0, limit, 3 if rows and not greedy else 0) for limit in (max(rows, 1), vocab)]
        ids, states = np.full(rows, -1, np.int32), np.full(rows, -1, np.int32)
        kept = (*columns, *bans, ids, states)
        addresses = [array.ctypes.data for array in kept]
        return abi.Draw(None, *addresses, rows, vocab, len(bans[0]), 62 - vocab.bit_length()), kept


def drawn(kept: tuple[Any, ...], vocab: int) -> None:
    """Check what a draw has found."""
    *_, ids, states = kept
    assert all(0 <= one < vocab for one in ids) and {*states} <= {0, 4}  # 4: all of them were banned


def main() -> None:
    """As the docstring says."""
    library = abi.load(Path(sys.argv[1]))
    random = np.random.default_rng(int(sys.argv[2]))
    shortlisted, rounds = 0, int(sys.argv[3])
    while rounds > 0 or not shortlisted:
        rounds -= 1
        run = Run(library, random)
        run.steps()
        counts = (c.c_int64 * 3)()
        library.ms_shortlisted(run.engine, counts)
        shortlisted += counts[0]
        library.ms_close(run.engine)
    print("clean")


if __name__ == "__main__":
    main()
