"""Decode steps as captured graphs: which size a step runs as, and that a replay computes what the step would."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.executors.emulated import EmulatedDevice
from tests.executors.mixed_steps import NUM_BLOCKS, mixed_steps

from mainspring.core.messages import GrantedRow, StepLaunch
from mainspring.plugins.executors.batch import Limits, StepBatch, build
from mainspring.plugins.executors.cupy_graphs import DecodeGraphs, bucket_sizes
from mainspring.plugins.executors.cupy_network import CupyNetwork
from mainspring.plugins.executors.cupy_ops import CupyOps
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights

MODEL = from_hf(CONFIG | {"head_dim": 64}, (), "tiny", "test")
BLOCK = 4
LIMITS = Limits(MODEL.vocab_size, 256, NUM_BLOCKS, BLOCK)


def step(counts: list[int], samples: list[bool] | None = None, padding: tuple[int, ...] = ()) -> StepBatch:
    """Rows of these counts, each in blocks of its own."""
    rows = []
    for index, count in enumerate(counts):
        table = tuple(range(2 * index, 2 * index + 2))
        slots = tuple(table[0] * BLOCK + at for at in range(count))
        sampled = True if samples is None else samples[index]
        rows.append(GrantedRow(str(index), 0, count, (5,) * count, sampled, table, slots))
    return build(StepLaunch(0, tuple(rows), None, padding=padding), LIMITS)


def network(device: EmulatedDevice, graphs: bool, most_tokens: int = 64, most_rows: int = 9) -> CupyNetwork:
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope)
    kv = KVShape(MODEL.num_layers, NUM_BLOCKS, BLOCK, MODEL.num_kv_heads, MODEL.head_dim)
    with torch.inference_mode():
        ops = CupyOps(heads, kv, torch.float32, torch.float32, device, 256)
        weights = random_weights(MODEL)
        return CupyNetwork(Llama(MODEL, weights.__getitem__, ops), ops, most_tokens, most_rows, graphs)


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 64, 250, 256, 1000])
def test_sizes_end_at_the_largest_batch_and_waste_little(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    for rows in range(1, most + 1):
        size = next(size for size in sizes if size >= rows)
        assert size - rows <= max(7, rows // 5)
    assert len(sizes) <= 5 + most // 8


def captured(*sizes: int) -> DecodeGraphs:
    graphs = DecodeGraphs()
    for size in sizes:
        graphs.capture(size, lambda: torch.zeros(1), lambda run: (run(), run)[1])  # type: ignore[func-returns-value]
    return graphs


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (step([1]), 1),
        (step([1, 1]), 2),
        (step([1, 1, 1]), 4),
        (step([1, 1], padding=(1,)), 4),
        (step([1] * 5), None),
        (step([1, 2]), None),
        (step([1, 1], samples=[True, False]), None),
        (step([1, 1], padding=(2,)), None),
        (step([]), None),
    ],
    ids=["1", "2", "3", "2-and-a-dummy", "too-many", "a-prompt", "one-does-not-sample", "long-dummy", "nothing"],
)
def test_only_steps_of_one_token_a_row_run_as_graphs(batch: StepBatch, expected: int | None) -> None:
    assert captured(4, 1, 2).size_of(batch) == expected


def test_without_graphs_no_step_has_a_size() -> None:
    graphs = captured(1)
    graphs.clear()
    assert graphs.sizes == []
    assert graphs.size_of(step([1])) is None


@pytest.mark.slow
@torch.inference_mode()
def test_replays_compute_what_steps_compute() -> None:
    """The recorded kernels and operators, with the arguments of the capture, over new ids, positions and tables."""
    device = EmulatedDevice()
    graphs, plain = network(device, True), network(EmulatedDevice(), False)
    assert graphs.graphs.sizes == [1, 2, 4, 8, 9]
    assert device.captured == 5
    replayed: list[int] = []
    replay = graphs.graphs.replay

    def counting(size: int) -> torch.Tensor:
        replayed.append(size)
        return replay(size)

    graphs.graphs.replay = counting  # type: ignore[method-assign]
    for batch in mixed_steps(MODEL.vocab_size, BLOCK, lengths=(1, 2, 1, 3, 1, 1, 30), chunk=30, count=14):
        made, expected = graphs.forward(batch), plain.forward(batch)
        assert (made is None) == (expected is None)
        if made is not None and expected is not None:
            assert made.shape == expected.shape
            torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    assert {8} <= set(replayed) <= {4, 8}
    assert device.captured == 5
    for mine, theirs in zip(graphs.ops.pool.parts, plain.ops.pool.parts, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@torch.inference_mode()
def test_a_step_larger_than_the_largest_makes_room_and_captures_again() -> None:
    device = EmulatedDevice()
    small, large = network(device, True, most_tokens=3, most_rows=2), network(EmulatedDevice(), False)
    assert device.captured == 2
    for batch in (step([1, 1]), step([7, 5, 1]), step([1, 1, 1]), step([1])):
        made, expected = small.forward(batch), large.forward(batch)
        assert made is not None and expected is not None
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    assert small.graphs.sizes == [1, 2, 3]
    assert device.captured == 5


@pytest.mark.slow
@torch.inference_mode()
def test_the_smallest_possible_engine_has_room_for_its_trial() -> None:
    assert network(EmulatedDevice(), True, most_tokens=1, most_rows=1).forward(step([1])) is not None


@pytest.mark.slow
@torch.inference_mode()
def test_nothing_is_written_for_padding_and_by_captures() -> None:
    made: Any = network(EmulatedDevice(), True)
    assert not any(part.any() for part in made.ops.pool.parts)
    made.forward(step([1, 1, 1]))
    written = made.ops.pool.parts[0].abs().amax((0, 2, 4))  # by block and place in it
    assert np.argwhere(written.numpy() > 0).tolist() == [[0, 0], [2, 0], [4, 0]]
