"""The backend of graphics processors against the plain reference, its kernels run by the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.executors.emulated import EmulatedDevice, Recorder
from tests.executors.mixed_steps import NUM_BLOCKS, mixed_steps

from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.cupy_ops import CupyOps, workspace_bytes
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.executors.plain_ops import PlainOps
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights

#: Four heads of 64 that share two key/value heads.
PLAIN = CONFIG | {"head_dim": 64}
#: Biases, norms of query and key heads, six heads on two, and windows in one of three layers.
RICH = PLAIN | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_attention_heads": 6,
    "num_hidden_layers": 3,
    "attention_bias": True,
    "use_sliding_window": True,
    "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}
MOST_TOKENS, MOST_ROWS, MAX_CONTEXT = 64, 16, 256
FP32, BF16, FP16, INT8 = torch.float32, torch.bfloat16, torch.float16, torch.int8


class Pair:
    """One random model over both backends."""

    def __init__(
        self, fields: dict[str, Any], dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int, device: EmulatedDevice
    ) -> None:
        self.config = config = from_hf(fields, (), "tiny", "test")
        heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim, config.rope, config.windows)
        kv = KVShape(config.num_layers, NUM_BLOCKS, block_size, config.num_kv_heads, config.head_dim)
        weights = random_weights(config)
        self.ops = CupyOps(heads, kv, dtype, kv_dtype, device, MAX_CONTEXT)
        self.ops.reserve(MOST_TOKENS, MOST_ROWS)
        self.plain = PlainOps(heads, kv, dtype, kv_dtype)
        self.made = Llama(config, weights.__getitem__, self.ops)
        self.expected = Llama(config, weights.__getitem__, self.plain)

    @torch.inference_mode()
    def compare(self, steps: Sequence[StepBatch], rtol: float, atol: float) -> None:
        sampling = 0
        for step in steps:
            expected = self.expected.forward(self.plain.prepare(step))
            made = self.made.forward(self.ops.prepare(step))
            assert (expected is None) == (made is None)
            if expected is not None and made is not None:
                assert made.dtype == torch.float32
                torch.testing.assert_close(made, expected, rtol=rtol, atol=atol)
                sampling += len(made)
        assert sampling > len(steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "block_size", "rtol", "atol"),
    [
        (FP32, FP32, 4, 1e-4, 1e-5),
        (FP32, INT8, 16, 2e-2, 5e-2),
        (BF16, BF16, 16, 0.1, 0.25),
        (BF16, INT8, 16, 0.1, 0.25),
        (FP16, FP16, 16, 0.02, 0.05),
        (BF16, FP16, 4, 0.1, 0.25),
    ],
    ids=str,
)
def test_logits_agree(dtype: torch.dtype, kv_dtype: torch.dtype, block_size: int, rtol: float, atol: float) -> None:
    pair = Pair(PLAIN, dtype, kv_dtype, block_size, EmulatedDevice())
    pair.compare(mixed_steps(pair.config.vocab_size, block_size), rtol, atol)
    assert pair.ops.weight_bytes() == pair.plain.weight_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(FP32, 1e-4, 1e-5), (BF16, 0.1, 0.3)], ids=str)
def test_biases_norms_and_windows_agree(dtype: torch.dtype, rtol: float, atol: float) -> None:
    pair = Pair(RICH, dtype, dtype, 16, EmulatedDevice())
    pair.compare(mixed_steps(pair.config.vocab_size, 16), rtol, atol)


@pytest.mark.slow
def test_long_contexts_are_split_and_joined() -> None:
    device = EmulatedDevice(num_multiprocessors=16)
    pair = Pair(PLAIN, FP32, FP32, 4, device)
    pair.ops.reserve(256, 4)
    device.log.clear()
    pair.compare(mixed_steps(pair.config.vocab_size, 4, (150, 20), 128, count=5), 1e-4, 1e-5)
    assert device.log.count("reduce") >= 2


@pytest.mark.slow
@torch.inference_mode()
def test_what_lies_in_slots_that_nobody_owns_does_not_matter_h11() -> None:
    pair = Pair(PLAIN, FP32, FP32, 4, EmulatedDevice())
    for part in pair.ops.pool.parts:
        part.fill_(torch.nan)
    pair.compare(mixed_steps(pair.config.vocab_size), 1e-4, 1e-5)


@pytest.mark.slow
@torch.inference_mode()
def test_a_step_allocates_nothing_once_every_buffer_is_taken() -> None:
    pair = Pair(PLAIN, BF16, BF16, 16, EmulatedDevice())
    steps = mixed_steps(pair.config.vocab_size, 16)
    pair.made.forward(pair.ops.prepare(steps[0]))
    taken = pair.ops.buffer_bytes
    for step in steps[1:]:
        batch = pair.ops.prepare(step)
        with Recorder([]):
            pair.made.forward(batch)
    assert pair.ops.buffer_bytes == taken
    bound = workspace_bytes(pair.config, BF16, MOST_TOKENS, MOST_ROWS, MAX_CONTEXT // 16, 4)
    assert 0.5 * bound < taken <= bound


def test_the_recorder_sees_an_allocation() -> None:
    ones = torch.ones(3)
    with pytest.raises(AssertionError, match="allocates"), Recorder([]):
        ones + ones
    tasks: list[Any] = []
    with Recorder(tasks):
        torch.mul(ones, 2, out=ones)
    tasks[0]()
    assert ones.tolist() == [4.0] * 3


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("kv_dtype", [FP32, INT8], ids=str)
def test_copies_are_made_in_order_between_pool_and_host(kv_dtype: torch.dtype) -> None:
    """Chains and swaps of whole blocks, numbers from 64 on being the host's, as the plain backend makes them."""
    model = from_hf(PLAIN, (), "tiny", "test")
    heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope)
    kv = KVShape(2, NUM_BLOCKS, 4, model.num_kv_heads, model.head_dim, num_host_blocks=5)
    ops, plain = CupyOps(heads, kv, FP32, kv_dtype, EmulatedDevice(), 64), PlainOps(heads, kv, FP32, kv_dtype)
    generator = torch.Generator().manual_seed(0)
    for mine, theirs in zip(ops.pool.parts, (plain.keys, plain.values, *plain.scales), strict=True):
        values = torch.randint(-99, 99, mine.shape, generator=generator).to(mine.dtype)
        mine.copy_(values)
        theirs.view(2, kv.num_all_blocks, 4, kv.num_kv_heads, -1)[:, :NUM_BLOCKS] = values.view(
            2, NUM_BLOCKS, kv.num_kv_heads, 4, -1
        ).transpose(2, 3)
    copies = ((1, 2), (2, 3), (3, 64), (64, 68), (5, 3), (68, 5), (7, 65), (65, 7), (1, 66), (8, 67), (66, 8), (67, 1))
    ops.copy_blocks(copies)
    plain.copy_blocks(copies)
    for (mine, host), theirs in zip(
        zip(ops.pool.parts, ops.pool.host_parts, strict=True), (plain.keys, plain.values, *plain.scales), strict=True
    ):
        both = torch.cat((mine, host), 1).view(2, kv.num_all_blocks, kv.num_kv_heads, 4, -1).transpose(2, 3)
        assert torch.equal(both, theirs.view(both.shape))
