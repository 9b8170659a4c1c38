"""Paged attention on the emulator against float64: every dtype, pool, head size and group, in every order of
threads."""

from __future__ import annotations

import pytest
from tests.emulator.module import last, schedule

from mainspring.plugins.kernels.cuda.names import HEAD_DIMS, AttentionSpec

from .paged import TOLERANCE, error, make
from .support import decode, prefill

#: (activations, pool) that the engine can be configured to.
FORMATS = [
    ("fp32", "fp32"),
    ("fp16", "fp16"),
    ("bf16", "bf16"),
    ("fp32", "int8"),
    pytest.param("fp16", "int8", marks=pytest.mark.soak),
    ("bf16", "int8"),
]

#: Where the launch changes: heads a block serves, tiles of eight heads.  All of them in the soak.
GROUPS = [(1, 2, 3, 7, 8, 9, 16), pytest.param(tuple(range(1, 17)), marks=pytest.mark.soak)]


def spec(dtype: str, kv_dtype: str, head_dim: int, group: int, **more: object) -> AttentionSpec:
    kv_heads = 1 if group > 4 else 2
    return AttentionSpec(dtype, kv_dtype, head_dim, 16, kv_heads * group, kv_heads, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", GROUPS, ids=["edges", "all"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_decode_of_every_group(dtype: str, kv_dtype: str, head_dim: int, groups: tuple[int, ...]) -> None:
    for group in groups:
        case = make(spec(dtype, kv_dtype, head_dim, group), [1, 17, 0, 50], [1] * 4, seed=group)
        case.write()
        expected = case.attention()
        with schedule(order=group % 4, seed=group // 4):
            made = decode(case, num_splits=1 + group % 3)
        assert error(made, dtype, expected) < TOLERANCE[dtype], group
        assert last.bank_conflicts == 0


@pytest.mark.parametrize("groups", GROUPS, ids=["edges", "all"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_prefill_of_every_group(dtype: str, kv_dtype: str, head_dim: int, groups: tuple[int, ...]) -> None:
    for group in groups:
        count = 1 + 20 // group
        case = make(spec(dtype, kv_dtype, head_dim, group), [40 + count, 1, 0, count], [count, 1, 2, count], seed=group)
        case.write()
        expected = case.attention()
        with schedule(order=group % 4, seed=group // 4):
            made = prefill(case)
        assert error(made, dtype, expected) < TOLERANCE[dtype], group
        assert last.bank_conflicts == 0
