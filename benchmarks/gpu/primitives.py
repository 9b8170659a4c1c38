"""Each primitive that the kernels are made of, against NumPy: fragments as the PTX ISA lays them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mainspring.plugins.executors.cupy_device import Device
from mainspring.plugins.kernels.cuda.source import FOLDER

from .arrays import down, up
from .report import Report, module_at

LANES = np.arange(32)
GROUP, PAIR = LANES // 4, LANES % 4
NAMES = (
    "try_mma<f16>", "try_mma<bf16>", "try_ldmatrix", "try_movmatrix", "try_copy_async", "try_load_stream",
    "try_numbers", "try_pairs",
)  # fmt: skip


class Primitives:
    """The kernels of ``primitives.cu``, run one by one."""

    def __init__(self, device: Device, report: Report) -> None:
        self.report, self.device, self.paged = report, device.device, module_at("tests/kernels/paged.py")
        text = Path(__file__).with_name("primitives.cu").read_text(encoding="utf-8")
        intrinsics = (FOLDER / "intrin.cuh").read_text(encoding="utf-8")
        code = text.replace('#include "intrin.cuh"', f'#line 1 "intrin.cuh"\n{intrinsics}\n#line 3 "primitives.cu"')
        self._module = device.raw_module(code=code, name_expressions=NAMES)
        self._synchronize = device.synchronize

    def run(self, name: str, *arrays: Any, shared: int = 0, blocks: int = 1) -> list[Any]:
        """Launch with one warp a block; arrays (scalars are passed as they are) as the kernel left them."""
        there = [one if isinstance(one, np.generic) else up(one, self.device) for one in arrays]
        args = tuple(one if isinstance(one, np.generic) else np.uint64(one.data_ptr()) for one in there)
        self._module.get_function(name)((blocks,), (32,), args, shared_mem=shared)
        self._synchronize()
        return [down(a, b) for a, b in zip(there, arrays, strict=True) if isinstance(a, torch.Tensor)]

    def same(self, name: str, made: Any, expected: Any) -> None:
        """Bit for bit."""
        self.report.check(f"primitive {name}", float((np.asarray(made) != np.asarray(expected)).sum()), 0.0)

    def mma(self, dtype: str) -> None:
        random = np.random.default_rng(0)
        a, b, c = (random.integers(-8, 8, shape).astype(np.float32) for shape in ((16, 16), (16, 8), (16, 8)))
        bits_a, bits_b = (self.paged.store(x, dtype).view(np.uint16).astype(np.uint32) for x in (a, b))
        left = np.stack(
            [
                _pack(bits_a, GROUP + 8 * (r % 2), 2 * PAIR + 8 * (r // 2), axis=1)
                for r in range(4)
            ], 1
        )  # fmt: skip
        right = np.stack([_pack(bits_b, 2 * PAIR + 8 * r, GROUP, axis=0) for r in range(2)], 1)
        total, start = c + a @ b, np.zeros((32, 4), np.float32)
        expected = start.copy()
        for i in range(4):
            row, column = GROUP + 8 * (i // 2), 2 * PAIR + i % 2
            start[:, i], expected[:, i] = c[row, column], total[row, column]
        kind = {"fp16": "f16", "bf16": "bf16"}[dtype]
        self.same(f"mma {dtype}", self.run(f"try_mma<{kind}>", start, left, right)[0], expected)

    def matrices(self) -> None:
        source = np.random.default_rng(1).integers(0, 2**16, (4, 8, 8)).astype(np.uint32)
        halves = source.astype(np.uint16).reshape(32, 8)
        empty = np.zeros((32, 4), np.uint32)
        straight, transposed, _ = self.run("try_ldmatrix", empty, empty, halves, shared=512)
        for name, made, matrices in (("", straight, source), (" trans", transposed, source.transpose(0, 2, 1))):
            expected = np.stack([_pack(matrix, GROUP, 2 * PAIR, axis=1) for matrix in matrices], 1)
            self.same("ldmatrix" + name, made, expected)
        one = source[0]
        moved, _ = self.run("try_movmatrix", empty[:, 0].copy(), _pack(one, GROUP, 2 * PAIR, axis=1))
        self.same("movmatrix", moved, _pack(one.T, GROUP, 2 * PAIR, axis=1))

    def copies(self) -> None:
        source = np.random.default_rng(2).integers(0, 2**32, (64, 4), dtype=np.uint64).astype(np.uint32)
        kept = np.where(np.arange(64)[:, None] % 32 < 20, source, 0).reshape(2, 32, 4)[:, ::-1].reshape(64, 4)
        made, _ = self.run("try_copy_async", np.zeros_like(source), source, np.int32(20), shared=1024)
        self.same("cp.async", made, kept)
        whole = source[:32]
        outs = [np.zeros((32, width), np.uint32) for width in (4, 2, 1)]
        for made, width in zip(self.run("try_load_stream", *outs, whole), (4, 2, 1), strict=False):
            self.same(f"streaming load of {4 * width} bytes", made, whole.reshape(-1)[: 32 * width].reshape(32, width))

    def numbers(self) -> None:
        random = np.random.default_rng(3)
        x = np.concatenate([random.standard_normal(2048) * s for s in (1e-3, 1.0, 20.0, 7e4)]).astype(np.float32)
        x[:6] = (0.0, -0.0, 65504.0, 65520.0, 2**-24, 2**-25)
        kinds = (np.float32, np.uint16, np.uint16, np.uint32, np.uint32, np.float32)
        outs = [np.zeros(len(x), kind) for kind in kinds]
        made = self.run("try_numbers", x, np.int32(len(x)), *outs, blocks=len(x) // 32)[1:]
        power, half, brain, halves, brains, back = made
        with np.errstate(over="ignore"):
            exact = np.exp2(x.astype(np.float64))
            ordinary = (exact > 2.0**-120) & (exact < 2.0**120)
            off = np.abs(power[ordinary] / exact[ordinary] - 1).max()
            expected = {kind: self.paged.store(x, kind).view(np.uint16) for kind in ("fp16", "bf16")}
            minus = {kind: self.paged.store(-x, kind).view(np.uint16).astype(np.uint32) for kind in ("fp16", "bf16")}
            self.same("fp16 back to float", back, x.astype(np.float16).astype(np.float32))
        self.report.check("primitive exp2", float(off), 2.0**-21)
        for kind, one, two in (("fp16", half, halves), ("bf16", brain, brains)):
            self.same(f"float to {kind}", one, expected[kind])
            self.same(f"pair to {kind}", two, expected[kind] | minus[kind] << 16)

    def pairs(self) -> None:
        random = np.random.default_rng(4)
        for at, (name, kind) in enumerate((("fp16", "fp16"), ("bf16", "bf16"))):
            a, b = (self.paged.store(random.integers(-128, 128, 64), kind).view(np.uint16) for _ in range(2))
            exact = self.paged.load(a.view(np.float16) if kind == "fp16" else a, kind) - self.paged.load(
                b.view(np.float16) if kind == "fp16" else b, kind
            )
            outs = [np.zeros(32, np.uint32) for _ in range(3)]
            made = self.run("try_pairs", a.view(np.uint32), b.view(np.uint32), *outs)[2:]
            self.same(f"difference of {name}", made[at].view(np.uint16), self.paged.store(exact, kind).view(np.uint16))
            if at == 0:
                byte = np.stack(
                    [word.view(np.uint8).reshape(32, 4) for word in (a.view(np.uint32), b.view(np.uint32))], 1
                )
                expected = byte.reshape(32, 8)[:, [0, 4, 2, 6]].copy().view(np.uint32)[:, 0]
                self.same("byte permutation", made[2], expected)


def _pack(matrix: Any, rows: Any, columns: Any, axis: int) -> Any:
    """Two neighbours along ``axis`` of 16-bit values in one word, the first in the low half."""
    second = matrix[rows + (axis == 0), columns + (axis == 1)]
    return (matrix[rows, columns] | second << 16).astype(np.uint32)


def check_primitives(device: Device, report: Report) -> None:
    """All of them; wrong ones are in the report."""
    one = Primitives(device, report)
    for dtype in ("fp16", "bf16"):
        one.mma(dtype)
    one.matrices()
    one.copies()
    one.numbers()
    one.pairs()
