"""Packed matrices of every format, GGML's blocks among them, against NumPy in float64; ragged sizes, biases, both
layouts."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.native_kernels import emulated_library, native_library

from mainspring.core.errors import EngineFault
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.blocks import BlockMatrix, Stacked
from mainspring.plugins.models.rope import Rope

LIBRARIES = pytest.mark.parametrize("library", [native_library, emulated_library], ids=["native", "emulated"])
KINDS = {name: gguf.GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")}


def make(library: Any, weights: str = "fp32", fast: bool = False, threads: int = 2) -> NativeOps:
    heads = HeadShape(2, 1, 8, Rope(10000.0))
    return NativeOps(
        heads, KVShape(1, 4, 4, 1, 8), library=library, threads=threads, weights=weights, int8_activations=fast
    )


def random_blocks(kind: str, rows: int, width: int, seed: int) -> np.ndarray[Any, Any]:
    """Random bytes with sane scales: every bit pattern of the integers occurs."""
    elements, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows * width // elements, size), np.uint8)
    halves = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[kind]
    for at in halves:
        values = random.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = values.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def activations(rows: int, width: int) -> torch.Tensor:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)) * torch.logspace(-3, 2, rows)[:, None]
    x[rows // 2] = 0  # a row of zeros has no scale
    return x


def close(got: torch.Tensor, x: torch.Tensor, weight: np.ndarray[Any, Any], error: float) -> bool:
    """Within ``error`` of the largest each row could give."""
    wide = x.double().numpy()
    expected, most = wide @ weight.T, np.abs(wide) @ np.abs(weight).T + 1e-12
    return bool((np.abs(got.double().numpy() - expected) <= error * most).all())


@LIBRARIES
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_blocks_as_they_are(library: Any, kind: str, fast: bool) -> None:
    ops = make(library(), fast=fast)
    rows, width = 75, 512
    data = random_blocks(kind, rows, width, 1)
    order = np.random.default_rng(2).permutation(rows).astype(np.int32)
    weight = gguf.dequantize(data, KINDS[kind]).astype(np.float64)
    plain, turned = (ops.pack(BlockMatrix(kind, (rows, width), data, by)) for by in (None, order))
    for count in (1, 2, 5, 13):
        x = activations(count, width)
        error = 1e-2 if fast else 5e-5
        assert close(ops.linear(x, plain), x, weight, error)
        assert torch.equal(ops.linear(x, turned), ops.linear(x, plain)[:, torch.from_numpy(order).long()])


@LIBRARIES
@pytest.mark.parametrize(("weights", "error"), [("fp32", 1e-6), ("bf16", 4e-3), ("q8", 6e-3), ("q4", 8e-2)])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (16, 32), (33, 31), (100, 65), (64, 576)])
def test_numbers(library: Any, weights: str, error: float, outputs: int, inputs: int) -> None:
    ops = make(library(), weights)
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))
    bias = torch.arange(outputs).float()
    packed = ops.pack(weight, bias)
    for count in (1, 3, 6, 7, 12, 25):
        x = activations(count, inputs)
        got = ops.linear(x, packed)
        # Grouped weights are off by half a step of their group's range, which may exceed a row's own sum.
        room = error * float(weight.abs().max()) * x.abs().sum(1, keepdim=True) if weights[0] == "q" else 0
        expected = x.double() @ weight.double().T + bias
        most = x.abs().double() @ weight.abs().double().T
        assert ((got - expected).abs() <= room + error * most + 1e-5 * bias.abs() + 1e-9).all()


@LIBRARIES
def test_a_stack_of_mixed_formats_is_its_parts_side_by_side(library: Any) -> None:
    ops = make(library(), "file")
    parts: list[Any] = [
        BlockMatrix("Q4_K", (40, 256), random_blocks("Q4_K", 40, 256, 3)),
        BlockMatrix("Q6_K", (7, 256), random_blocks("Q6_K", 7, 256, 4)),
        torch.randn(5, 256).to(torch.bfloat16),
    ]
    bias = torch.randn(52)
    x = activations(9, 256)
    got = ops.linear(x, ops.pack(Stacked(parts), bias))
    expected = torch.cat([ops.linear(x, ops.pack(part)) for part in parts], dim=1) + bias
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@LIBRARIES
@pytest.mark.parametrize("kind", list(KINDS))
def test_embeddings_are_read_from_the_blocks(library: Any, kind: str) -> None:
    ops = make(library())
    data = random_blocks(kind, 20, 256, 5)
    table = ops.table(BlockMatrix(kind, (20, 256), data))
    ids = np.asarray([3, 0, 19, 3], np.int32)
    from types import SimpleNamespace

    batch: Any = SimpleNamespace(ids=ids, num_tokens=4)
    expected = torch.from_numpy(gguf.dequantize(data, KINDS[kind])[ids])
    torch.testing.assert_close(ops.embed(table, batch), expected, rtol=1e-6, atol=1e-7)


@LIBRARIES
@pytest.mark.parametrize("kind", list(KINDS))
def test_eight_bit_activations_are_multiplied_without_rounding(library: Any, kind: str) -> None:
    """Whole numbers whose largest in every group is 127 are their own 8-bit form, so that nothing is lost before the
    sum, and the largest negative weights meet the largest activations."""
    rows, width = 33, 512
    data = random_blocks(kind, rows, width, 6)
    weight = gguf.dequantize(data, KINDS[kind]).astype(np.float64)
    x = torch.randint(-127, 128, (5, width), generator=torch.Generator().manual_seed(1)).float()
    x[:, ::32], x[1], x[2] = 127, 127, -127
    ops = make(library(), fast=True)
    assert close(ops.linear(x, ops.pack(BlockMatrix(kind, (rows, width), data))), x, weight, 2e-6)


@LIBRARIES
@pytest.mark.parametrize("weights", ["fp32", "q4"])
def test_nonsense_in_a_row_stays_visible_and_in_that_row(library: Any, weights: str) -> None:
    """NaN and infinities must reach the sampler, which fails that row by name."""
    ops = make(library(), weights)
    packed = ops.pack(torch.randn(32, 64))
    x = torch.randn(5, 64)
    clean = ops.linear(x, packed)
    x[1, 3], x[3, 40] = torch.nan, torch.inf
    got = ops.linear(x, packed)
    assert not got[[1, 3]].isfinite().any()
    assert torch.equal(got[[0, 2, 4]], clean[[0, 2, 4]])


def test_wrong_arguments_are_exceptions() -> None:
    ops = make(native_library())
    packed = ops.pack(torch.randn(16, 32))
    for x in (torch.randn(2, 31), torch.randn(32), torch.randn(2, 32).double(), torch.randn(2, 2, 32)):
        with pytest.raises(EngineFault, match="expected float32 rows of 32"):
            ops.linear(x, packed)
    assert torch.equal(ops.linear(torch.ones(32, 2).T, packed), ops.linear(torch.ones(2, 32), packed))
    for order in ([0, 1, 16, *range(3, 16)], [0, 1], [-1, *range(1, 16)]):
        data = random_blocks("Q4_0", 16, 32, 1)
        with pytest.raises(EngineFault, match="an order of rows"):
            ops.pack(BlockMatrix("Q4_0", (16, 32), data, np.asarray(order, np.int32)))
    for data, shape in ((random_blocks("Q4_0", 15, 32, 1), (16, 32)), (random_blocks("Q4_0", 16, 32, 1), (16, 64))):
        with pytest.raises(EngineFault, match="blocks of Q4_0"):
            ops.pack(BlockMatrix("Q4_0", shape, data))
