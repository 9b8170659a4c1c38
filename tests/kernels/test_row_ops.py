"""The operators between matrix products against float64, and copies of blocks bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tests.emulator.module import RawModule, schedule

from mainspring.plugins.kernels.cuda.block_copies import BlockCopies
from mainspring.plugins.kernels.cuda.plan import waves
from mainspring.plugins.kernels.cuda.row_ops import RowOps

from .paged import TOLERANCE, error, gated, load, poisoned, rms_normed, store

DTYPES = ("fp32", "fp16", "bf16")


@cache
def row_ops(dtype: str, head_dim: int = 64) -> RowOps:
    return RowOps(RawModule, dtype, head_dim)


def normal(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    made: np.ndarray = store(np.random.default_rng(seed).standard_normal(shape), dtype)
    return made


@pytest.mark.parametrize("width", [4, 100, 576, 4100])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: str, residual: bool, width: int) -> None:
    x, before, weight = normal((3, width), dtype, 0), normal((3, width), dtype, 1), normal((width,), dtype, 2)
    out, kept = poisoned(x.shape, dtype), before.copy()
    with schedule(order=3, seed=width):
        row_ops(dtype).rms_norm(out, x, weight, 1e-5, rows=3, width=width, residual=kept if residual else None)
    total = load(x, dtype) + load(before, dtype) * residual
    if residual:
        assert error(kept, dtype, total) < TOLERANCE[dtype]
        total = load(kept, dtype)
    assert error(out, dtype, rms_normed(total, load(weight, dtype), 1e-5)) < TOLERANCE[dtype]


@pytest.mark.parametrize("head_dim", [64, 80, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_heads(dtype: str, head_dim: int) -> None:
    qkv, query, key = normal((5, 10, head_dim), dtype, 0), normal((head_dim,), dtype, 1), normal((head_dim,), dtype, 2)
    made = qkv.copy()
    row_ops(dtype, head_dim).norm_heads(made, query, key, 1e-6, num_tokens=5, num_heads=6, num_kv_heads=2)
    weights = np.stack([load(query, dtype)] * 6 + [load(key, dtype)] * 2)
    expected = rms_normed(load(qkv, dtype)[:, :8], weights, 1e-6)
    assert error(made[:, :8], dtype, expected) < TOLERANCE[dtype]
    assert made[:, 8:].tobytes() == qkv[:, 8:].tobytes()


@pytest.mark.parametrize("width", [4, 1536, 1540])
@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul(dtype: str, width: int) -> None:
    x = store(np.random.default_rng(0).standard_normal((3, 2 * width)) * 8, dtype)
    out = poisoned((3, width), dtype)
    row_ops(dtype).silu_mul(out, x, rows=3, width=width)
    assert error(out, dtype, gated(load(x, dtype))) < TOLERANCE[dtype]


@pytest.mark.parametrize("block_bytes", [4096, 36, 7])
def test_blocks_are_copied_in_every_layer(block_bytes: int) -> None:
    random = np.random.default_rng(block_bytes)
    source = random.integers(0, 256, (3, 9, block_bytes), dtype=np.uint8)
    target = random.integers(0, 256, (3, 5, block_bytes), dtype=np.uint8)
    expected = target.copy()
    expected[:, [4, 0]] = source[:, [1, 8]]
    pairs = np.array([[1, 4], [8, 0]], np.int32)
    BlockCopies(RawModule).copy(
        source, target, pairs, num_pairs=2, num_layers=3, block_bytes=block_bytes, source_blocks=9, target_blocks=5
    )
    assert target.tobytes() == expected.tobytes()


def test_copies_that_depend_on_each_other_go_in_waves() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        copies = [(int(a), int(b)) for a, b in random.integers(0, 8, (12, 2))]
        pool = np.arange(8)
        for source, target in copies:
            pool[target] = pool[source]
        made = np.arange(8)
        for wave in waves(copies):
            before = made.copy()
            for source, target in reversed(wave):  # in any order, and from what was there before
                made[target] = before[source]
        assert (made == pool).all()
        assert [pair for wave in waves(copies) for pair in wave] == copies
    assert waves([(0, 1), (2, 3), (0, 4)]) == [[(0, 1), (2, 3), (0, 4)]]
