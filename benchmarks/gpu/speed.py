"""How fast the kernels are, as a share of what the device copies and multiplies at best; and what a launch costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from mainspring.plugins.executors import cupy_shared
from mainspring.plugins.executors.cupy_device import Device
from mainspring.plugins.kernels.cuda.block_copies import BlockCopies
from mainspring.plugins.kernels.cuda.launch import Attention, Parts, Pool
from mainspring.plugins.kernels.cuda.names import AttentionSpec
from mainspring.plugins.kernels.cuda.plan import choose_splits, prefill_tiles
from mainspring.plugins.kernels.cuda.row_ops import RowOps
from mainspring.plugins.kernels.cuda.sampling import Sampling

from .report import Report
from .weights import BLOCK, LLAMA, SMOL, Shape, scattered_tables

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "int8": torch.int8}
#: What decode attention and prefill are expected to reach, as a share of copy bandwidth and of the bf16 rate.
EXPECTED_DECODE, EXPECTED_PREFILL = 0.85, 0.45


class Decode(NamedTuple):
    """One measurement: ``layers`` pools in turn, together larger than any cache."""

    shape: Shape
    kv_dtype: str
    rows: int
    context: int
    layers: int
    dtype: str = "bf16"


DECODES = (
    Decode(LLAMA, "bf16", 64, 8192, 1),
    Decode(LLAMA, "int8", 64, 8192, 1),
    Decode(LLAMA, "bf16", 16, 2048, 4),
    Decode(LLAMA, "bf16", 1, 8192, 16),
    Decode(SMOL, "bf16", 256, 2048, 2),
    Decode(SMOL, "bf16", 1, 2048, 128),
    Decode(SMOL, "fp32", 64, 2048, 4, "fp32"),
)
#: Shape, pool, sequences, tokens of each.
PREFILLS = ((LLAMA, "bf16", 1, 8192), (LLAMA, "bf16", 16, 512), (LLAMA, "int8", 1, 8192), (SMOL, "bf16", 4, 2048))
TRY_DECODES, TRY_PREFILLS = (Decode(SMOL, "bf16", 2, 100, 2), Decode(SMOL, "int8", 1, 300, 1)), ((SMOL, "bf16", 2, 40),)


class Clock:
    """Seconds of work on the device: by events around it, or by the wall clock where an emulator is the device."""

    def __init__(self, device: Device) -> None:
        self._device, self._events = device, device.device.type == "cuda"

    def of(self, work: Callable[[], Any], times: int = 10) -> float:
        """The median of ``times`` runs, after two more."""
        for _ in range(2):
            work()
        self._device.synchronize()
        return statistics.median(self._one(work) for _ in range(times))

    def _one(self, work: Callable[[], Any]) -> float:
        if not self._events:
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def captured(self, launch: Callable[[], None], count: int) -> float:
        """Of one ``launch`` among ``count`` in a graph: without what the host spends on each."""
        return self.of(self._device.capture(launch)) / count


def pool_of(device: Device, shape: Shape, kv_dtype: str, num_blocks: int) -> Pool:
    """One layer's pool of random numbers."""
    size = (num_blocks, shape.kv_heads, BLOCK, shape.head_dim)
    if kv_dtype != "int8":
        return Pool(*(torch.randn(size, device=device.device, dtype=TYPES[kv_dtype]) for _ in "kv"), num_blocks)
    codes = [torch.randint(-127, 128, size, device=device.device, dtype=torch.int8) for _ in "kv"]
    scales = [torch.full(size[:3], 0.01, device=device.device) for _ in "kv"]
    return Pool(*codes, num_blocks, *scales)


class Speed:
    """The measurements, each one a figure of the report."""

    def __init__(self, device: Device, report: Report, *, tiny: bool) -> None:
        self.device, self.report, self.tiny, self.clock = device, report, tiny, Clock(device)
        self.there = device.device
        self.copy_bandwidth = self.matrix_rate = float("nan")

    def ceilings(self) -> None:
        """What copies and bf16 products reach at best: all else is a share of them."""
        self.copy_bandwidth = self._copies(2**16 if self.tiny else 2**31)
        self.report.figure("copy in the device's memory", self.copy_bandwidth / 1e12, "TB/s, read and written")
        self.matrix_rate = self._products(64 if self.tiny else 8192)
        self.report.figure("bf16 matrix product", self.matrix_rate / 1e12, "TFLOP/s")

    def _copies(self, count: int) -> float:
        source = torch.zeros(count, dtype=torch.int16, device=self.there)
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.clock.of(lambda: target.copy_(source))

    def _products(self, size: int) -> float:
        a, b, out = (torch.randn(size, size, device=self.there, dtype=torch.bfloat16) for _ in range(3))
        return 2 * size**3 / self.clock.of(lambda: torch.mm(a, b, out=out))

    def decode(self, one: Decode) -> None:
        """Bytes of keys and values that attention reads a second."""
        shape, rows = one.shape, one.rows
        name = f"decode attention, {shape.name} {one.dtype}, pool {one.kv_dtype}, {rows} x {one.context} tokens"
        spec = AttentionSpec(one.dtype, one.kv_dtype, shape.head_dim, BLOCK, shape.heads, shape.kv_heads)
        kernels = Attention(self.device.raw_module, spec)
        tables = torch.from_numpy(scattered_tables(rows, one.context).astype(np.int32)).to(self.there)
        pools = [pool_of(self.device, shape, one.kv_dtype, tables.numel()) for _ in range(one.layers)]
        lengths = torch.full((rows,), one.context, dtype=torch.int32, device=self.there)
        q = torch.randn(rows, shape.heads, shape.head_dim, device=self.there, dtype=TYPES[one.dtype])
        out, blocks = torch.empty_like(q), rows * kernels.head_blocks
        splits = choose_splits(blocks, one.context, self.device.num_multiprocessors)
        room = (rows, shape.heads, splits)
        parts = Parts(
            torch.empty(*room, shape.head_dim, device=self.there), torch.empty(*room, 2, device=self.there), splits
        )

        def launch() -> None:
            for pool in pools:
                kernels.decode(
                    out, q, pool, tables, lengths, num_rows=rows, table_width=tables.shape[1],
                    parts=parts if splits > 1 else None, num_splits=splits,
                )  # fmt: skip

        seconds = self.clock.captured(launch, one.layers)
        pool = pools[0]
        read = sum(
            part.nbytes for part in (pool.keys, pool.values, pool.key_scales, pool.value_scales) if part is not None
        )
        rate = read * (one.context / (tables.shape[1] * BLOCK)) / seconds
        self.report.figure(
            name, rate / 1e12, "TB/s", share_of_copy=rate / self.copy_bandwidth, microseconds=seconds * 1e6,
            splits=splits, expected_share=EXPECTED_DECODE,
        )  # fmt: skip

    def shared(self, shape: Shape, rows: int, common: int, own: int) -> None:
        """Rows that begin with the same ``common`` tokens: those read once for all, and by every row for itself."""
        spec = AttentionSpec("bf16", "bf16", shape.head_dim, BLOCK, shape.heads, shape.kv_heads)
        kernels, device = Attention(self.device.raw_module, spec), self.there
        beginning, width = common // BLOCK, (common + own) // BLOCK
        blocks = np.tile(np.arange(width, dtype=np.int32), (rows, 1))
        blocks[:, beginning:] += np.arange(rows, dtype=np.int32)[:, None] * (width - beginning)
        lengths = np.full(rows, common + own, np.int32)
        tables, there_lengths = (torch.from_numpy(part).to(device) for part in (blocks, lengths))
        pool = pool_of(self.device, shape, "bf16", int(blocks.max()) + 1)
        q = torch.randn(rows, shape.heads, shape.head_dim, device=device, dtype=torch.bfloat16)
        out, entries = torch.empty_like(q), np.stack((np.arange(rows),) * 2, 1).astype(np.int32)
        found = cupy_shared.find(blocks, lengths, BLOCK)
        plan = cupy_shared.plan(found, entries, spec.group, kernels.instances["prefix"].rows)
        tiles, members, firsts, written = (
            torch.from_numpy(part).to(device) for part in (plan.tiles, plan.members, plan.firsts, plan.prefix_parts)
        )
        splits = choose_splits(rows * kernels.head_blocks, common + own, self.device.num_multiprocessors)

        def room(slots: int) -> Parts:
            size = (rows, shape.heads, slots)
            return Parts(torch.empty(*size, shape.head_dim, device=device), torch.empty(*size, 2, device=device), slots)

        own_parts, joint_parts = room(splits), room(plan.num_slots + splits)
        common_arguments = {"num_rows": rows, "table_width": width, "num_splits": splits}

        def apart() -> None:
            kernels.decode(
                out, q, pool, tables, there_lengths, parts=own_parts if splits > 1 else None, **common_arguments
            )

        def together() -> None:
            kernels.prefix(joint_parts, q, pool, tables, tiles, members, num_tiles=len(tiles), table_width=width)
            kernels.decode(
                out,
                q,
                pool,
                tables,
                there_lengths,
                parts=joint_parts,
                firsts=firsts,
                prefix_parts=written,
                **common_arguments,
            )

        alone, once = self.clock.captured(apart, 1), self.clock.captured(together, 1)
        self.report.figure(
            f"decode attention, {shape.name} bf16, {rows} rows that share {common} tokens, with {own} of their own",
            once * 1e6, "microseconds", each_row_for_itself=alone * 1e6,
        )  # fmt: skip

    def prefill(self, shape: Shape, kv_dtype: str, rows: int, tokens: int) -> None:
        """Operations of the two products of causal attention a second."""
        spec = AttentionSpec("bf16", kv_dtype, shape.head_dim, BLOCK, shape.heads, shape.kv_heads)
        kernels = Attention(self.device.raw_module, spec)
        tables = torch.from_numpy(scattered_tables(rows, tokens).astype(np.int32)).to(self.there)
        pool = pool_of(self.device, shape, kv_dtype, tables.numel())
        begins = [row * tokens for row in range(rows + 1)]
        tiles = torch.from_numpy(prefill_tiles(begins, spec.group, kernels.tile_rows)).to(self.there)
        starts = torch.tensor(begins, dtype=torch.int32, device=self.there)
        lengths = torch.full((rows,), tokens, dtype=torch.int32, device=self.there)
        q = torch.randn(rows * tokens, shape.heads, shape.head_dim, device=self.there, dtype=torch.bfloat16)
        out = torch.empty_like(q)
        seconds = self.clock.captured(
            lambda: kernels.prefill(
                out, q, pool, tables, lengths, starts, tiles, num_tiles=len(tiles), table_width=tables.shape[1]
            ),
            1,
        )
        operations = 4 * shape.head_dim * shape.heads * rows * tokens * (tokens + 1) / 2
        rate = operations / seconds
        self.report.figure(
            f"prefill attention, {shape.name} bf16, pool {kv_dtype}, {rows} x {tokens} tokens", rate / 1e12, "TFLOP/s",
            share_of_product=rate / self.matrix_rate, milliseconds=seconds * 1e3, expected_share=EXPECTED_PREFILL,
        )  # fmt: skip

    def rows(self) -> None:
        """The small operators, by the bytes that they read and write."""
        count, width = (8, 256) if self.tiny else (16384, 4096)
        ops = RowOps(self.device.raw_module, "bf16", 128)
        x, residual, out = (torch.randn(count, width, device=self.there, dtype=torch.bfloat16) for _ in range(3))
        weight, gate_up = torch.ones(width, device=self.there, dtype=torch.bfloat16), torch.cat((x, x), 1)
        work = {
            "rms_norm with residual": (
                lambda: ops.rms_norm(out, x, weight, 1e-5, rows=count, width=width, residual=residual), 4
            ),
            "silu_mul": (lambda: ops.silu_mul(out, gate_up, rows=count, width=width), 3),
        }  # fmt: skip
        for name, (launch, passes) in work.items():
            rate = passes * x.nbytes / self.clock.captured(launch, 1)
            self.report.figure(
                f"{name}, {count} x {width}", rate / 1e12, "TB/s", share_of_copy=rate / self.copy_bandwidth
            )
        times = 20 if self.tiny else 2000
        self.device.synchronize()
        begin = time.perf_counter()
        for _ in range(times):
            ops.silu_mul(out, gate_up, rows=1, width=width)
        spent = time.perf_counter() - begin
        self.device.synchronize()
        self.report.figure("host time of a launch", spent / times * 1e6, "microseconds")

    def draws(self) -> None:
        """Tokens from logits, by the cuts that are on."""
        rows, vocab = (2, 500) if self.tiny else (64, 128256)
        kernels, there = Sampling(self.device.raw_module), self.there
        logits = torch.randn(rows, vocab, device=there) * 3
        ids, states = (torch.empty(rows, dtype=torch.int32, device=there) for _ in range(2))
        cuts = (("greedy", 0.0, 0, 1.0), ("no cut", 1.0, 0, 1.0), ("top-k and top-p", 1.0, 50, 0.9))
        for name, temperature, top_k, top_p in cuts:
            columns = (temperature, top_p, 0.0, 0.5)
            wide = [torch.full((rows,), value, dtype=torch.float64, device=there) for value in columns]
            most = torch.full((rows,), top_k, dtype=torch.int32, device=there)

            def launch(wide: list[torch.Tensor] = wide, most: torch.Tensor = most) -> None:
                kernels.sample(ids, states, logits, wide[0], most, *wide[1:], rows=rows, vocab=vocab)

            seconds = self.clock.captured(launch, 1)
            self.report.figure(f"sample, {rows} x {vocab}, {name}", seconds * 1e6, "microseconds")

    def swap(self) -> None:
        """Blocks to memory of the host and back."""
        layers, blocks, size = (2, 4, 4096) if self.tiny else (32, 256, 32768)
        pool = torch.zeros(layers, blocks, size, dtype=torch.uint8, device=self.there)
        host = self.device.host_memory((layers, blocks, size), torch.uint8)
        pairs = torch.arange(blocks, dtype=torch.int32, device=self.there)[:, None].repeat(1, 2).contiguous()
        kernels = BlockCopies(self.device.raw_module)
        shape = {"num_pairs": blocks, "num_layers": layers, "block_bytes": size}
        shape |= {"source_blocks": blocks, "target_blocks": blocks}
        for name, source, target in (("out", pool, host), ("in", host, pool)):
            seconds = self.clock.of(lambda a=source, b=target: kernels.copy(a, b, pairs, **shape), 5)
            self.report.figure(f"swap {name}", pool.nbytes / seconds / 1e9, "GB/s")


def measure_kernels(device: Device, report: Report, *, tiny: bool) -> None:
    """All of them; ``tiny``: sizes that only show that the measurements run."""
    speed = Speed(device, report, tiny=tiny)
    speed.ceilings()
    for one in TRY_DECODES if tiny else DECODES:
        if report.time_for(f"decode {one}", 8):
            speed.decode(one)
    for one in TRY_PREFILLS if tiny else PREFILLS:
        if report.time_for(f"prefill {one}", 8):
            speed.prefill(*one)
    for shape, rows, common, own in ((SMOL, 3, 256, 32),) if tiny else ((LLAMA, 64, 8192, 256), (LLAMA, 16, 1024, 256)):
        if report.time_for(f"shared {shape.name}, {rows} x {common} + {own}", 8):
            speed.shared(shape, rows, common, own)
    for name, measure in (("rows", speed.rows), ("draws", speed.draws), ("swap", speed.swap)):
        if report.time_for(name, 8):
            measure()
