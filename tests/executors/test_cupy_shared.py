"""Beginnings that rows of a step share: found by their blocks, read once, and the logits are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.executors.emulated import EmulatedDevice

from mainspring.plugins.executors import cupy_network, cupy_shared
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.cupy_network import CupyNetwork
from mainspring.plugins.executors.cupy_ops import CupyOps
from mainspring.plugins.executors.cupy_shared import find, tokens_saved
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights


def tables(*rows: list[int], width: int = 40) -> np.ndarray:
    made = np.full((len(rows), width), -1, np.int32)
    for at, row in enumerate(rows):
        made[at, : len(row)] = row
    return made


def found(block_tables: np.ndarray, lengths: list[int], block_size: int = 16) -> list[tuple[list[int], int]]:
    shared = find(block_tables, np.asarray(lengths, np.int32), block_size)
    return [(list(one.rows), one.tokens) for one in shared]


HEAD = list(range(100, 120))  # 20 blocks, 320 tokens


def test_rows_that_begin_with_the_same_blocks() -> None:
    block_tables = tables([*HEAD, 1, 2], [7, 8], [*HEAD, 3], HEAD)
    assert found(block_tables, [340, 30, 321, 320]) == [([0, 2, 3], 304)]  # the last row still writes to block 119
    assert found(block_tables, [340, 30, 330, 100]) == [([0, 2], 320)]  # the last row has not come so far


def test_two_groups_and_rows_alone() -> None:
    other = list(range(200, 217))
    block_tables = tables([*HEAD, 1], [*other, 2], [*HEAD, 3], [*other, 4], [5], [6])
    assert found(block_tables, [330, 280, 330, 275, 1, 16]) == [([0, 2], 320), ([1, 3], 272)]


@pytest.mark.parametrize(
    ("rows", "lengths"),
    [
        ([[*HEAD]], [320]),
        ([[*HEAD[:16], 1], [*HEAD[:16], 2]], [256, 400]),
        ([[*HEAD[:15], 1, 2, 3], [*HEAD[:15], 4, 5, 6]], [280, 280]),
        ([[1], [2]], [16, 16]),
        ([], []),
    ],
    ids=["alone", "one-is-too-short", "part-too-early", "short", "nothing"],
)
def test_what_is_not_worth_it(rows: list[list[int]], lengths: list[int]) -> None:
    assert found(tables(*rows), lengths) == []


def test_blocks_that_are_no_multiple_of_sixteen_tokens() -> None:
    head = list(range(100, 130))
    assert found(tables([*head, 1], [*head, 2]), [301, 301], block_size=10) == [([0, 1], 288)]


def test_tokens_saved() -> None:
    block_tables = tables([*HEAD, 1], [*HEAD, 3], [*HEAD, 4])
    assert tokens_saved(find(block_tables, np.full(3, 321, np.int32), 16)) == 2 * 320


MODEL = from_hf(
    CONFIG
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "head_dim": 64,
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 20,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
    (),
    "tiny",
    "test",
)


def step(counts: list[int], lengths: list[int], block_tables: np.ndarray) -> StepBatch:
    """Rows that end at ``lengths``; all sample."""
    starts = np.cumsum([0, *counts]).astype(np.int32)
    owner = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(starts[-1]) - starts[owner] + (np.array(lengths) - counts)[owner]
    return StepBatch(
        ids=(positions % MODEL.vocab_size).astype(np.int32),
        positions=positions.astype(np.int32),
        slot_mapping=(block_tables[owner, positions // 16] * 16 + positions % 16).astype(np.int32),
        cu_seqlens=starts,
        context_lens=np.array(lengths, np.int32),
        block_tables=block_tables,
        logits_rows=starts[1:] - 1,
        num_rows=len(counts),
        sampling_rids=(),
    )


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("graphs", [False, True])
def test_a_shared_beginning_is_read_once_and_changes_nothing(monkeypatch: pytest.MonkeyPatch, graphs: bool) -> None:
    """Three rows of four begin with the same 96 tokens, beside another row, and beside a prompt."""
    monkeypatch.setattr(cupy_shared, "LEAST_TOKENS", 32)
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope, MODEL.windows)
    weights, device = random_weights(MODEL), EmulatedDevice(num_multiprocessors=8)
    kv = KVShape(MODEL.num_layers, 32, 16, MODEL.num_kv_heads, MODEL.head_dim)
    ops = CupyOps(heads, kv, torch.bfloat16, torch.bfloat16, device, 256)
    made: Any = CupyNetwork(Llama(MODEL, weights.__getitem__, ops), ops, 128, 5, graphs)
    head = list(range(6))
    block_tables = tables([*head, 10], [20, 21], [*head, 11], [*head, 12], [22, 23], width=8)
    made.forward(step([96, 30], [96, 30], block_tables[:2]))
    made.forward(step([10, 3, 1], [106, 99, 97], block_tables[[0, 2, 3]]))
    for counts, lengths, rows in (
        ([1] * 4, [107, 31, 100, 98], [0, 1, 2, 3]),
        ([1, 7, 1, 1], [108, 7, 101, 99], [0, 4, 2, 3]),
    ):
        batch = step(counts, lengths, block_tables[rows])
        logits = []
        for least_saved, worth in ((2**30, 2**40), (0, 0)):
            monkeypatch.setattr(cupy_shared, "LEAST_SAVED", least_saved)
            monkeypatch.setattr(cupy_network, "WORTH_LAUNCHING", worth)
            device.log.clear()
            logits.append(made.forward(batch).clone())
            assert device.log.count("prefix_mma") == (2 if least_saved == 0 else 0)  # not in the layer with a window
        torch.testing.assert_close(*logits, rtol=0.02, atol=0.06)
        assert not torch.equal(*logits)
    assert ops.saved_bytes(batch) == 2 * 96 * 2 * 2 * 64 * 2 * 2


@pytest.mark.slow
@torch.inference_mode()
def test_without_tensor_cores_every_row_reads_for_itself() -> None:
    device = EmulatedDevice()
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope, MODEL.windows)
    kv = KVShape(MODEL.num_layers, 32, 16, MODEL.num_kv_heads, MODEL.head_dim)
    ops = CupyOps(heads, kv, torch.float32, torch.float32, device, 512)
    block_tables = tables([*range(20), 20], [*range(20), 21])
    assert ops.saved_bytes(step([1, 1], [330, 330], block_tables)) == 0
