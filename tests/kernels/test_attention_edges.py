"""Windows, soft caps, shared prefixes, odd block sizes, queries left in place, lengths at every edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.emulator.module import last, schedule

from mainspring.plugins.kernels.cuda.launch import Parts
from mainspring.plugins.kernels.cuda.names import AttentionSpec
from mainspring.plugins.kernels.cuda.plan import SharedPrefix, choose_splits, prefill_tiles, prefix_tiles

from .paged import TOLERANCE, error, load, make, share, store, written
from .support import attention, decode, decode_shared, parts_for, prefill

FORMATS = [("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "int8")]


@pytest.mark.parametrize("window", [1, 16, 17, 40, 1000])
@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_windows(dtype: str, kv_dtype: str, head_dim: int, window: int) -> None:
    spec = AttentionSpec(dtype, kv_dtype, head_dim, 16, 4, 2, windows=True)
    case = written(spec, [1, 16, 17, 33, 41, 57, 0, 150], [1] * 8, seed=window)
    expected = case.attention(window)
    for num_splits in (1, 3):
        with schedule(order=3, seed=window):
            assert error(decode(case, num_splits, window), dtype, expected) < TOLERANCE[dtype]
    case = written(spec, [150, 33, 0, 20], [90, 2, 3, 20], seed=window)
    assert error(prefill(case, window), dtype, case.attention(window)) < TOLERANCE[dtype]


def test_a_window_reads_only_its_own_blocks() -> None:
    """What left the window may belong to another sequence already: here it is no number."""
    spec = AttentionSpec("bf16", "bf16", 64, 16, 4, 2, windows=True)
    case = written(spec, [150], [1])
    expected = case.attention(20)
    case.pool.keys[case.tables[0, :8]] = case.pool.values[case.tables[0, :8]] = 0x7FFF
    assert error(decode(case, 1, 20), "bf16", expected) < TOLERANCE["bf16"]
    case = written(spec, [150], [5])
    expected = case.attention(20)
    case.tables[0, :7] = -(2**30)
    assert error(prefill(case, 20), "bf16", expected) < TOLERANCE["bf16"]


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_soft_caps(dtype: str, kv_dtype: str, windows: bool) -> None:
    """Scores several times the cap, so that it bends them."""
    window = 30 * windows
    spec = AttentionSpec(dtype, kv_dtype, 64, 16, 4, 2, windows=windows, softcap=3.0)
    case = written(spec, [1, 17, 70], [1] * 3, spread=2.0)
    expected = case.attention(window)
    assert error(decode(case, 2, window), dtype, expected) < TOLERANCE[dtype]
    case = written(spec, [90, 20], [40, 20], spread=2.0)
    assert error(prefill(case, window), dtype, case.attention(window)) < TOLERANCE[dtype]


@pytest.mark.parametrize("group", [1, 3, 9])
@pytest.mark.parametrize("head_dim", [64, 80, 256])
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("fp16", "fp16"), ("bf16", "bf16"), ("fp16", "int8"), ("bf16", "int8")]
)
def test_shared_prefixes(dtype: str, kv_dtype: str, head_dim: int, group: int) -> None:
    """Two groups that share, one row that does not; prefixes of several tiles and of one."""
    spec = AttentionSpec(dtype, kv_dtype, head_dim, 16, 2 * group, 2)
    case = make(spec, [70, 129, 20, 100, 17], [1] * 5, seed=group)
    shared = [share(case, [0, 1, 3], 64), share(case, [4, 2], 16)]
    case.write()
    expected = case.attention()
    for num_splits, split in ((1, 16), (3, 48), (2, 1024)):
        with schedule(order=2, seed=split):
            assert error(decode_shared(case, shared, split, num_splits), dtype, expected) < TOLERANCE[dtype]


def test_a_shared_prefix_is_read_once() -> None:
    spec = AttentionSpec("bf16", "bf16", 64, 16, 4, 4)
    case = make(spec, [144] * 8, [1] * 8)
    shared = share(case, list(range(8)), 128)
    case.write()
    tile_rows = attention(spec).instances["prefix"].rows
    plan = prefix_tiles([shared], [(row, row) for row in range(8)], spec.group, tile_rows, split=128)
    attention(spec).prefix(
        parts_for(case, 8, 2), case.q, case.pool, case.tables, plan.tiles, plan.members, num_tiles=len(plan.tiles),
        table_width=case.width,
    )  # fmt: skip
    keys_values = 2 * 128 * 4 * 64 * 2
    assert last.copied_bytes == keys_values + 8 * 4 * 64 * 2


@pytest.mark.parametrize("block_size", [1, 4, 20, 32, 64])
@pytest.mark.parametrize(("dtype", "kv_dtype"), [*FORMATS, ("bf16", "bf16")])
def test_block_sizes(dtype: str, kv_dtype: str, block_size: int) -> None:
    spec = AttentionSpec(dtype, kv_dtype, 64, block_size, 6, 2)
    assert spec.mma == (dtype != "fp32" and block_size % 16 == 0)
    case = written(spec, [1, 17, 70], [1] * 3)
    assert error(decode(case, 2), dtype, case.attention()) < TOLERANCE[dtype]
    case = written(spec, [70, 33, 20], [30, 1, 20])
    assert error(prefill(case), dtype, case.attention()) < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_a_device_without_the_tensor_cores(dtype: str, kv_dtype: str) -> None:
    spec = AttentionSpec(dtype, kv_dtype, 128, 16, 4, 2, tensor_cores=False)
    case = written(spec, [1, 17, 70], [1] * 3)
    assert "prefix" not in attention(spec).instances
    assert error(decode(case, 2), dtype, case.attention()) < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_a_mixed_step_with_queries_left_in_place(dtype: str, kv_dtype: str) -> None:
    """Rows of one token by ``decode`` and the others by ``prefill``, into one result, from one ``qkv``."""
    spec = AttentionSpec(dtype, kv_dtype, 64, 16, 6, 2)
    case = written(spec, [40, 7, 90, 33, 0], [10, 1, 1, 5, 2])
    kernels, width = attention(spec), spec.num_heads + 2 * spec.num_kv_heads
    qkv = store(np.full((len(case.q), width, 64), np.nan), dtype)
    qkv[:, : spec.num_heads] = case.q
    out, places = case.out(), (case.pool, case.tables, case.lengths)
    entries = np.array([[2, case.starts[2]], [1, case.starts[1]]], np.int32)
    kernels.decode(
        out, qkv, *places, num_rows=2, table_width=case.width, q_stride=kernels.qkv_stride, entries=entries,
        parts=parts_for(case, 2, 2), num_splits=2, min_split=32,
    )  # fmt: skip
    tiles = prefill_tiles(list(case.starts), spec.group, kernels.tile_rows, sequences=[0, 3, 4])
    kernels.prefill(
        out, qkv, *places, case.starts, tiles, num_tiles=len(tiles), table_width=case.width, q_stride=kernels.qkv_stride
    )
    assert error(out, dtype, case.attention()) < TOLERANCE[dtype]


@pytest.mark.parametrize(("dtype", "kv_dtype"), FORMATS)
def test_every_length_near_an_edge(dtype: str, kv_dtype: str) -> None:
    """Ends of blocks, of tiles and of splits."""
    spec = AttentionSpec(dtype, kv_dtype, 64, 16, 2, 1)
    lengths = [*range(1, 36), 47, 48, 49, 63, 64, 65, 127, 128, 129]
    case = written(spec, lengths, [1] * len(lengths))
    expected = case.attention()
    for num_splits in (1, 2, 7):
        assert error(decode(case, num_splits), dtype, expected) < TOLERANCE[dtype]
    case = written(spec, lengths, [max(1, length // 2) for length in lengths])
    assert error(prefill(case), dtype, case.attention()) < TOLERANCE[dtype]


def test_nothing_but_padding() -> None:
    spec = AttentionSpec("bf16", "bf16", 64, 16, 6, 2)
    case = make(spec, [0, 0], [1, 1])
    assert not load(decode(case, 2), "bf16").any()
    case = make(spec, [0, 0], [3, 80])
    assert not load(prefill(case), "bf16").any()


def test_infinities_of_others_do_no_harm() -> None:
    """Behind a sequence's end lies what an earlier owner left, here infinities."""
    for dtype, kv_dtype in (("fp32", "fp32"), ("bf16", "bf16")):
        spec = AttentionSpec(dtype, kv_dtype, 64, 16, 4, 2)
        for run, counts in ((decode, [1, 1]), (prefill, [2, 20])):
            case = make(spec, [17, 33], counts)
            case.pool.keys[:] = case.pool.values[:] = store(np.float32(np.inf), kv_dtype)
            case.write()
            assert error(run(case), dtype, case.attention()) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "int8"},
        {"kv_dtype": "fp8"},
        {"head_dim": 72},
        {"num_heads": 5},
        {"block_size": 0},
    ],
)
def test_shapes_without_a_kernel_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "dtype": "bf16", "kv_dtype": "bf16", "head_dim": 64, "block_size": 16, "num_heads": 4, "num_kv_heads": 2,
    }  # fmt: skip
    AttentionSpec(**right)
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        AttentionSpec(**{**right, **wrong})


def test_splits_need_room() -> None:
    spec = AttentionSpec("fp32", "fp32", 64, 16, 4, 2)
    case = written(spec, [40], [1])
    with pytest.raises(ValueError, match="2 splits in 1 parts"):
        attention(spec).decode(
            case.out(), case.q, case.pool, case.tables, case.lengths, num_rows=1, table_width=case.width, num_splits=2
        )
    with pytest.raises(ValueError, match="shared prefix of 20 tokens"):
        prefix_tiles([SharedPrefix([0, 1], 20)], [(0, 0), (1, 1)], 1, 64)
    with pytest.raises(ValueError, match="a row in two of them"):
        prefix_tiles([SharedPrefix([0, 1], 16), SharedPrefix([1, 2], 16)], [(0, 0), (1, 1), (2, 2)], 1, 64)


def test_splits_fill_a_device_and_no_more() -> None:
    assert choose_splits(3, 4096, 132) == 32
    assert choose_splits(64 * 8, 4096, 132) == 1
    assert choose_splits(4 * 8, 4096, 132) == 9
    assert choose_splits(4 * 8, 100, 132) == 1
    assert choose_splits(0, 0, 132) == 1


def test_offsets_beyond_two_to_the_31() -> None:
    """A block that lies 4 GiB of elements into the pool; its pages are the only ones that are touched."""
    spec = AttentionSpec("bf16", "int8", 64, 16, 8, 8)
    case = make(spec, [20], [1])
    num_blocks = 2**32 // (8 * 16 * 64) + 2
    shape = (num_blocks, 8, 16, 64)
    far = case.pool.__class__(
        np.zeros(shape, np.int8), np.zeros(shape, np.int8), num_blocks, np.zeros(shape[:3], np.float32),
        np.zeros(shape[:3], np.float32),
    )  # fmt: skip
    case.pool = far
    case.tables[0, :2] = [num_blocks - 1, num_blocks - 2]
    at = np.arange(20)
    case.slots = (case.tables[0, at // 16] * 16 + at % 16).astype(np.int32)
    attention(spec).kv_write(case.k, case.v, case.slots, far, num_tokens=20)
    assert far.keys[num_blocks - 1].any()
    assert not far.keys[:2].any()
    parts = Parts(np.zeros((1, 8, 1, 64), np.float32), np.zeros((1, 8, 1, 2), np.float32), 1)
    out = case.out()
    attention(spec).decode(out, case.q, far, case.tables, case.lengths, num_rows=1, table_width=case.width, parts=parts)
    assert error(out, "bf16", case.attention()) < TOLERANCE["bf16"]
