"""Keys and values reach their slots and nothing else: bit for bit as in Python, poison everywhere else."""

from __future__ import annotations

import numpy as np
import pytest
from tests.emulator.module import schedule

from mainspring.plugins.kernels.cuda.launch import Pool
from mainspring.plugins.kernels.cuda.names import HEAD_DIMS, AttentionSpec

from .paged import Case, load, make, parts, quantise, rotated, store
from .support import attention

FORMATS = [(a, b) for a in ("fp32", "fp16", "bf16") for b in (a, "int8")]


def case_of(dtype: str, kv_dtype: str, head_dim: int, seed: int = 0) -> Case:
    made = make(AttentionSpec(dtype, kv_dtype, head_dim, 16, 6, 2), [1, 17, 40], [1, 17, 40], seed)
    made.slots[5], made.slots[9] = -1, made.pool.num_blocks * 16
    return made


def expected_pool(case: Case, k: object = None) -> Pool:
    """The pool after the tokens with a slot were written."""
    twin = case_of(case.spec.dtype, case.spec.kv_dtype, case.spec.head_dim)
    twin.k = case.k if k is None else k  # type: ignore[assignment]
    kept = (case.slots >= 0) & (case.slots < case.pool.num_blocks * 16)
    twin.slots, twin.k, twin.v = case.slots[kept], twin.k[kept], case.v[kept]
    twin.write()
    return twin.pool


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_kv_write(dtype: str, kv_dtype: str, head_dim: int) -> None:
    case = case_of(dtype, kv_dtype, head_dim)
    with schedule(order=3, seed=head_dim):
        attention(case.spec).kv_write(case.k, case.v, case.slots, case.pool, num_tokens=len(case.slots))
    assert parts(case.pool) == parts(expected_pool(case))


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_rope_write(dtype: str, kv_dtype: str, head_dim: int) -> None:
    case = case_of(dtype, kv_dtype, head_dim)
    positions = np.random.default_rng(1).permutation(len(case.slots)).astype(np.int32)
    half = head_dim // 2
    angles = positions.max() + 1 - np.arange(positions.max() + 1)[:, None] * 0.9 ** np.arange(half)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    qkv = np.concatenate([case.q, case.k, case.v], 1)
    before = qkv.copy()
    with schedule(order=2, seed=head_dim):
        attention(case.spec).rope_write(qkv, cos, sin, positions, case.slots, case.pool, num_tokens=len(case.slots))
    turned = rotated(load(before[:, :8], dtype), cos[positions], sin[positions])
    close = {"fp32": 3e-7, "fp16": 5e-4, "bf16": 4e-3}[dtype]
    assert np.linalg.norm(load(qkv[:, :6], dtype) - turned[:, :6]) < close * np.linalg.norm(turned[:, :6])
    assert qkv[:, 6:].tobytes() == before[:, 6:].tobytes()
    values = expected_pool(case)
    assert case.pool.values.tobytes() == values.values.tobytes()
    kept = (case.slots >= 0) & (case.slots < case.pool.num_blocks * 16)
    block, place = case.slots[kept] // 16, case.slots[kept] % 16
    keys = case.pool.keys[block, :, place]
    if case.pool.key_scales is not None:
        made = keys * case.pool.key_scales[block, :, place].astype(np.float64)[..., None]
        codes, scales = quantise(load(store(turned[kept, 6:], dtype), dtype))
        assert np.abs(made - codes * scales.astype(np.float64)[..., None]).max() <= 1.01 * scales.max()
    else:
        assert np.linalg.norm(load(keys, dtype) - turned[kept, 6:]) < close * np.linalg.norm(turned[kept, 6:])
    unwritten = np.ones((case.pool.num_blocks, 16), bool)
    unwritten[block, place] = False
    at, where = np.nonzero(unwritten)
    assert (
        case.pool.keys[at, :, where].tobytes() == case_of(dtype, kv_dtype, head_dim).pool.keys[at, :, where].tobytes()
    )


def test_an_int8_head_that_is_no_number_stays_none() -> None:
    case = case_of("fp32", "int8", 64)
    case.k[0, 0, 3], case.k[1, 1, 5] = np.nan, np.inf
    attention(case.spec).kv_write(case.k, case.v, case.slots, case.pool, num_tokens=len(case.slots))
    assert case.pool.key_scales is not None
    scales = case.pool.key_scales[case.slots[:2] // 16, :, case.slots[:2] % 16]
    assert np.isnan(scales[0, 0])
    assert np.isinf(scales[1, 1])
    assert np.isfinite([scales[0, 1], scales[1, 0]]).all()
