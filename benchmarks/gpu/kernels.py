"""Every kernel against float64, on paged data: shuffled blocks, poison in unowned slots; tokens against the sampler."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mainspring.plugins.executors.cupy_device import Device
from mainspring.plugins.kernels.cuda.block_copies import BlockCopies
from mainspring.plugins.kernels.cuda.launch import Attention, Parts, Pool
from mainspring.plugins.kernels.cuda.names import AttentionSpec
from mainspring.plugins.kernels.cuda.plan import prefill_tiles, prefix_tiles
from mainspring.plugins.kernels.cuda.row_ops import RowOps
from mainspring.plugins.kernels.cuda.sampling import DRAWN, Sampling
from mainspring.samplers.stages import ORDER, Prefix, RowParams, argmax, draw

from .arrays import down, up
from .report import Report, module_at

#: Name, heads, key/value heads, head size.
SMOL, LLAMA = ("SmolLM2-135M", 9, 3, 64), ("Llama-3-8B", 32, 8, 128)
#: Model shape, activations, pool, more of the spec, window in tokens.
CASES: tuple[tuple[tuple[str, int, int, int], str, str, dict[str, Any], int], ...] = (
    (SMOL, "bf16", "bf16", {}, 0),
    (SMOL, "fp16", "fp16", {}, 0),
    (SMOL, "fp32", "fp32", {}, 0),
    (LLAMA, "bf16", "bf16", {}, 0),
    (LLAMA, "bf16", "int8", {}, 0),
    (LLAMA, "fp16", "int8", {}, 0),
    (LLAMA, "fp32", "int8", {}, 0),
    (LLAMA, "bf16", "bf16", {"windows": True}, 70),
    (LLAMA, "bf16", "bf16", {"softcap": 30.0}, 0),
    (("16 heads on one of 96", 16, 1, 96), "fp16", "fp16", {}, 0),
    (("heads of 80", 4, 4, 80), "bf16", "bf16", {}, 0),
    (("heads of 256", 8, 4, 256), "bf16", "bf16", {}, 0),
)


class Step:
    """One step of test data on the device, through the kernels of one spec."""

    def __init__(self, device: Device, spec: AttentionSpec, lengths: list[int], counts: list[int]) -> None:
        self.paged = module_at("tests/kernels/paged.py")
        self.device, self.kernels = device, Attention(device.raw_module, spec)
        self.case = self.paged.make(spec, lengths, counts, seed=len(lengths))
        there = device.device
        pool = self.case.pool
        self.pool = Pool(
            *(up(part, there) for part in (pool.keys, pool.values)),
            pool.num_blocks,
            *(up(part, there) for part in (pool.key_scales, pool.value_scales)),
        )
        self.q, self.tables, self.lengths, self.starts = (
            up(part, there) for part in (self.case.q, self.case.tables, self.case.lengths, self.case.starts)
        )

    def write(self) -> float:
        """Keys and values to their slots; the number of bytes of the pool that differ from the right ones."""
        case, there = self.case, self.device.device
        k, v, slots = (up(part, there) for part in (case.k, case.v, case.slots))
        self.kernels.kv_write(k, v, slots, self.pool, num_tokens=len(case.slots))
        self.device.synchronize()
        case.write()
        pairs = [
            (made, expected)
            for made, expected in (
                (self.pool.keys, case.pool.keys),
                (self.pool.values, case.pool.values),
                (self.pool.key_scales, case.pool.key_scales),
                (self.pool.value_scales, case.pool.value_scales),
            )
            if expected is not None
        ]
        wrong = [(down(a, b).view(np.uint8) != b.view(np.uint8)).sum() for a, b in pairs]
        return float(sum(wrong))

    def parts(self, rows: int, slots: int) -> Parts:
        spec, there = self.case.spec, self.device.device
        shape = (rows, spec.num_heads, slots)
        nan = float("nan")
        out = torch.full((*shape, spec.head_dim), nan, device=there)
        return Parts(out, torch.full((*shape, 2), nan, device=there), slots)

    def decode(self, splits: int, window: int = 0) -> float:
        out = up(self.case.out(), self.device.device)
        rows = len(self.case.lengths)
        parts = self.parts(rows, splits) if splits > 1 else None
        self.kernels.decode(
            out, self.q, self.pool, self.tables, self.lengths, num_rows=rows, table_width=self.case.width, parts=parts,
            num_splits=splits, min_split=16, window=window,
        )  # fmt: skip
        return self.error(out, window)

    def prefill(self, window: int = 0) -> float:
        out = up(self.case.out(), self.device.device)
        tiles = prefill_tiles(self.case.starts.tolist(), self.case.spec.group, self.kernels.tile_rows)
        self.kernels.prefill(
            out, self.q, self.pool, self.tables, self.lengths, self.starts, up(tiles, self.device.device),
            num_tiles=len(tiles), table_width=self.case.width, window=window,
        )  # fmt: skip
        return self.error(out, window)

    def error(self, out: torch.Tensor, window: int) -> float:
        self.device.synchronize()
        expected = self.case.attention(window)
        return float(self.paged.error(down(out, self.case.q), self.case.spec.dtype, expected))


def shared_prefix(device: Device, tokens: int) -> float:
    """Rows whose sequences begin with the same blocks: the prefix once for all, the rest row by row."""
    _, heads, kv_heads, head_dim = LLAMA
    step = Step(device, AttentionSpec("bf16", "bf16", head_dim, 16, heads, kv_heads), [tokens + 40] * 5, [1] * 5)
    case, there = step.case, device.device
    shared = step.paged.share(case, range(5), tokens)
    step.tables = up(case.tables, there)
    step.write()
    plan = prefix_tiles(
        [shared],
        [(row, row) for row in range(5)],
        case.spec.group,
        step.kernels.instances["prefix"].rows,
        split=64,
    )
    parts, out = step.parts(5, plan.num_slots + 2), up(case.out(), there)
    tiles, members, firsts, written = (
        up(part, there) for part in (plan.tiles, plan.members, plan.firsts, plan.prefix_parts)
    )
    shape = {"table_width": case.width}
    step.kernels.prefix(parts, step.q, step.pool, step.tables, tiles, members, num_tiles=len(plan.tiles), **shape)
    step.kernels.decode(
        out, step.q, step.pool, step.tables, step.lengths, num_rows=5, parts=parts, num_splits=2, min_split=16,
        firsts=firsts, prefix_parts=written, **shape,
    )  # fmt: skip
    return step.error(out, 0)


def rotation(device: Device, dtype: str) -> float:
    """Queries turned in place, keys turned into a pool: the larger of the two errors."""
    paged, there = module_at("tests/kernels/paged.py"), device.device
    spec = AttentionSpec(dtype, dtype, 64, 16, 9, 3)
    case = paged.make(spec, [40], [40], seed=9)
    positions = np.random.default_rng(6).permutation(40).astype(np.int32)
    angles = np.arange(40)[:, None] * 0.8 ** np.arange(32)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    stored = np.concatenate([case.q, case.k, case.v], 1)
    qkv, shape = up(stored, there), case.pool.keys.shape
    pool = Pool(*(up(paged.poisoned(shape, dtype), there) for _ in "kv"), case.pool.num_blocks)
    turns = (up(part, there) for part in (cos, sin, positions, case.slots))
    Attention(device.raw_module, spec).rope_write(qkv, *turns, pool, num_tokens=40)
    device.synchronize()
    expected = paged.rotated(paged.load(stored[:, :12], dtype), cos[positions], sin[positions])
    queries = np.ascontiguousarray(down(qkv, stored)[:, :9])
    keys = down(pool.keys, case.pool.keys)[case.slots // 16, :, case.slots % 16]
    errors = [paged.error(a, dtype, b) for a, b in ((queries, expected[:, :9]), (keys, expected[:, 9:]))]
    return float(max(errors))


def row_kernels(device: Device, report: Report, dtype: str) -> None:
    """Norms, gate and copies."""
    paged = module_at("tests/kernels/paged.py")
    bound, there, random = paged.TOLERANCE[dtype], device.device, np.random.default_rng(5)
    ops = RowOps(device.raw_module, dtype, 128)
    x, before, weight, gate_up, query = (
        paged.store(random.standard_normal(shape), dtype)
        for shape in ((33, 576), (33, 576), (576,), (33, 3072), (128,))
    )
    out, kept = up(paged.poisoned(x.shape, dtype), there), up(before, there)
    ops.rms_norm(out, up(x, there), up(weight, there), 1e-5, rows=33, width=576, residual=kept)
    device.synchronize()
    total = paged.load(down(kept, x), dtype)
    expected = paged.rms_normed(total, paged.load(weight, dtype), 1e-5)
    report.check(f"rms_norm {dtype}", paged.error(down(out, x), dtype, expected), bound)
    exact = paged.load(x, dtype) + paged.load(before, dtype)
    report.check(f"rms_norm {dtype} residual", paged.error(down(kept, x), dtype, exact), bound)
    made = up(paged.poisoned((33, 1536), dtype), there)
    ops.silu_mul(made, up(gate_up, there), rows=33, width=1536)
    device.synchronize()
    error = paged.error(down(made, gate_up), dtype, paged.gated(paged.load(gate_up, dtype)))
    report.check(f"silu_mul {dtype}", error, bound)
    qkv = paged.store(random.standard_normal((7, 6, 128)), dtype)
    heads = up(qkv, there)
    ops.norm_heads(heads, up(query, there), up(query, there), 1e-6, num_tokens=7, num_heads=4, num_kv_heads=1)
    device.synchronize()
    expected = paged.rms_normed(paged.load(qkv, dtype)[:, :5], paged.load(query, dtype), 1e-6)
    normed = down(heads, qkv)
    report.check(f"norm_heads {dtype}", paged.error(np.ascontiguousarray(normed[:, :5]), dtype, expected), bound)


def draws(device: Device, report: Report, vocab: int) -> None:
    """Tokens by the kernel and by the standard sampler's stages on the CPU, any mix of parameters; banned ids, and ids
    that become inputs."""
    rows, random, there = 24, np.random.default_rng(8), device.device
    logits = (random.standard_normal((rows, vocab)) * 3).astype(np.float32)
    temperature = random.choice([0.0, 0.7, 1.0, 3.0], rows)
    top_k = random.choice([0, 1, 40, 500], rows).astype(np.int32)
    top_p, min_p = random.choice([1.0, 0.9, 0.1], rows), random.choice([0.0, 0.05], rows)
    uniform = random.random(rows)
    best = logits.argmax(1)
    pairs = np.stack((np.arange(0, rows, 2), best[::2]), 1).astype(np.int32)  # every other row's best token is banned
    kernels, scores = Sampling(device.raw_module), up(logits, there)
    ids, states = (torch.full((rows,), -7, dtype=torch.int32, device=there) for _ in range(2))
    kernels.ban(scores, up(pairs, there), num_pairs=len(pairs), vocab=vocab)
    columns = (up(column, there) for column in (temperature, top_k, top_p, min_p, uniform))
    kernels.sample(ids, states, scores, *columns, rows=rows, vocab=vocab)
    inputs = torch.full((rows + 3,), -1, dtype=torch.int32, device=there)
    takes = np.stack((np.arange(rows) + 3, np.arange(rows)[::-1]), 1).astype(np.int32)
    kernels.take(inputs, ids, up(takes, there), num_pairs=rows)
    device.synchronize()
    logits[pairs[:, 0], pairs[:, 1]] = -np.inf
    whole, (p, m, u) = torch.from_numpy(logits), (torch.from_numpy(part) for part in (top_p, min_p, uniform))
    divisor = torch.from_numpy(np.where(temperature == 0, 1.0, temperature))
    params = RowParams(divisor, torch.from_numpy(top_k).long(), p, m, u)
    prefix = Prefix(whole, vocab, divisor, with_total=False)
    for stage in ORDER:
        stage.cut(prefix, params)
    drawn, _ = draw(prefix, u)
    expected = torch.where(torch.from_numpy(temperature == 0), argmax(whole), drawn)
    report.check(f"sample, of {rows}: tokens that differ", float((ids.cpu() != expected).sum()), 0.0)
    report.check("sample: rows said to be unusable", float((states.cpu() != DRAWN).sum()), 0.0)
    report.check("take_drawn", float((inputs.cpu()[3:] != expected.flip(0)).sum() + (inputs[:3] != -1).sum()), 0.0)


def copies(device: Device, report: Report) -> None:
    """Blocks from the device's memory to the host's and back to another place."""
    source = torch.randint(0, 255, (3, 9, 4096), dtype=torch.uint8, device=device.device)
    host, back = device.host_memory((3, 5, 4096), torch.uint8), torch.zeros_like(source)
    kernels = BlockCopies(device.raw_module)
    shape = {"num_pairs": 2, "num_layers": 3, "block_bytes": 4096}
    out = torch.tensor([[1, 4], [8, 0]], dtype=torch.int32, device=device.device)
    home = torch.tensor([[4, 2], [0, 7]], dtype=torch.int32, device=device.device)
    kernels.copy(source, host, out, source_blocks=9, target_blocks=5, **shape)
    kernels.copy(host, back, home, source_blocks=5, target_blocks=9, **shape)
    device.synchronize()
    expected = torch.zeros_like(source)
    expected[:, [2, 7]] = source[:, [1, 8]]
    report.check("copies of blocks by way of the host", float((back != expected).sum()), 0.0)


def check_kernels(device: Device, report: Report, *, small: bool) -> None:
    """All of them; ``small``: contexts that an emulator gets through in a minute."""
    long = 200 if small else 1500
    paged = module_at("tests/kernels/paged.py")
    for dtype in ("bf16", "fp16", "fp32"):
        row_kernels(device, report, dtype)
        report.check(f"rope_write {dtype}", rotation(device, dtype), paged.TOLERANCE[dtype])
    copies(device, report)
    draws(device, report, 700 if small else 128256)
    for (model, heads, kv_heads, head_dim), dtype, kv_dtype, more, window in CASES:
        name, bound = f"{model} {dtype}, pool {kv_dtype}" + "".join(f", {key}" for key in more), paged.TOLERANCE[dtype]
        if not report.time_for(name, 10):
            continue
        spec = AttentionSpec(dtype, kv_dtype, head_dim, 16, heads, kv_heads, **more)
        step = Step(device, spec, [1, 15, 16, 17, 65, 0, long], [1] * 7)
        report.check(f"{name}: kv_write", step.write(), 0.0)
        for splits in (1, 4):
            report.check(f"{name}: decode, {splits} part(s)", step.decode(splits, window), bound)
        count = long // 5
        step = Step(device, spec, [40, count + 30, long, 5, 0], [40, count, count, 1, 2])
        step.write()
        report.check(f"{name}: prefill", step.prefill(window), bound)
    if report.time_for(name := "Llama-3-8B bf16: shared prefix", 10):
        report.check(name, shared_prefix(device, 96 if small else 1024), paged.TOLERANCE["bf16"])
