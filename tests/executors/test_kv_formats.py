"""Keys and values kept in fewer bits: int8 with a scale per token and head, and fp16."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.errors import ConfigError
from mainspring.plugins.executors.dtypes import head_bytes, quantise
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, ModelConfig

PROMPTS = [[5], [7, 8, 9], list(range(20, 37)), [1] * 8, Random(0).choices(range(128), k=61)]
NEW_TOKENS = 10


def test_each_head_of_each_token_has_its_own_scale() -> None:
    """The largest value becomes 127, nothing is off by more than half a step, and zeros stay zeros."""
    heads = torch.randn(7, 3, 16, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 4, 7)[:, None, None]
    heads[3, 1] = 0
    codes, scales = quantise(heads)
    assert (codes.dtype, codes.shape, scales.shape) == (torch.int8, heads.shape, heads.shape[:-1])
    most = codes.abs().amax(-1)
    assert most[3, 1] == 0
    assert (most.flatten() == 127).sum() == 7 * 3 - 1
    assert ((codes * scales[..., None] - heads).abs() <= 0.5001 * scales[..., None]).all()


def test_a_scale_that_is_not_a_number_stays_one() -> None:
    """A row that computed nonsense must not look healthy afterwards."""
    codes, scales = quantise(torch.tensor([[1.0, float("nan")], [1.0, float("inf")], [1.0, 2.0]]))
    assert (codes * scales[:, None]).isfinite().all(-1).tolist() == [False, False, True]


@pytest.mark.parametrize(("kv_dtype", "rtol", "atol"), [("int8", 0.1, 0.2), ("fp16", 0.002, 0.005)])
def test_logits_stay_near_those_of_float32(start: Any, tiny: Path, kv_dtype: str, rtol: float, atol: float) -> None:
    exact, rounded = start(tiny), start(tiny, kv_dtype=kv_dtype)
    for driver in (exact, rounded):
        driver.run(driver.row("a", 0, PROMPTS[4][:40], False))
        for at in range(40, len(PROMPTS[4])):
            driver.run(driver.row("a", at, PROMPTS[4][at : at + 1], True))
    made, expected = torch.cat(rounded.logits), torch.cat(exact.logits)
    torch.testing.assert_close(made, expected, rtol=rtol, atol=atol)
    assert not torch.equal(made, expected)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp16"])
def test_greedy_ids_depend_on_neither_batch_nor_chunks(start: Any, tiny: Path, kv_dtype: str) -> None:
    alone = [start(tiny, kv_dtype=kv_dtype).generate([prompt], NEW_TOKENS, chunk=1000)[0] for prompt in PROMPTS]
    for chunk, block_size in ((1, 4), (7, 16), (1000, 1)):
        driver = start(tiny, kv_dtype=kv_dtype, block_size=block_size, num_blocks=256)
        assert driver.generate(PROMPTS, NEW_TOKENS, chunk, stagger=2) == alone


def test_scales_are_copied_with_their_blocks(start: Any, tiny: Path) -> None:
    driver = start(tiny, kv_dtype="int8")
    driver.run(driver.row("a", 0, [5, 6, 7, 8], True))
    driver.tables["b"] = [driver.free.pop()]
    own, copied = driver.row("a", 4, [9], True), driver.row("b", 4, [9], True)
    driver.run(own, copied, copies=((driver.tables["a"][0], driver.tables["b"][0]),))
    torch.testing.assert_close(driver.logits[-1][0], driver.logits[-1][1])


def test_a_block_begun_anew_forgets_scales_that_are_not_finite(start: Any, tiny: Path) -> None:
    driver = start(tiny, kv_dtype="int8")
    with torch.inference_mode():
        for scales in driver.executor._loaded.network.ops.scales:
            scales.fill_(torch.inf)
    driver.generate([PROMPTS[1]], 2, chunk=10)
    assert torch.cat(driver.logits).isfinite().all()


@pytest.mark.parametrize(("kv_dtype", "per_head"), [("fp32", 64), ("fp16", 32), ("int8", 16 + 4)])
def test_the_ledger_counts_what_the_pool_takes(start: Any, tiny: Path, kv_dtype: str, per_head: int) -> None:
    driver = start(tiny, kv_dtype=kv_dtype)
    loaded = driver.executor._loaded
    ops = loaded.network.ops
    assert head_bytes(ops.keys.dtype, 16) == per_head
    assert loaded.ledger.kv == sum(part.nbytes for part in (ops.keys, ops.values, *ops.scales))


@pytest.mark.parametrize("kv_dtype", ["fp32", "int8"])
def test_host_blocks_are_in_the_ledger(tiny: Path, kv_dtype: str) -> None:
    """They lie behind the pool, and what does not fit is refused with their size."""
    allocator = AllocatorConfig(block_size=4, num_blocks=8, options={"preempt": "swap", "host_blocks": 5})
    config = Config(
        executor=ExecutorConfig(threads=1, kv_dtype=kv_dtype),
        allocator=allocator,
        model=ModelConfig(path=str(tiny)),
    )
    executor = TorchExecutor(None, config)
    info = executor.load(print)
    assert executor._loaded is not None
    ops: Any = executor._loaded.network
    parts = (ops.ops.keys, ops.ops.values, *ops.ops.scales)
    assert info.num_blocks == 8
    assert info.memory["host_kv"] * 8 == info.memory["kv"] * 5
    assert info.memory["host_kv"] + info.memory["kv"] == sum(part.nbytes for part in parts)
    executor.close()
    huge = AllocatorConfig(block_size=4, num_blocks=8, options={"preempt": "swap", "host_blocks": 10**9})
    with pytest.raises(ConfigError, match=r"1000000000 host blocks of .* need .* available"):
        TorchExecutor(None, Config(allocator=huge, model=ModelConfig(path=str(tiny)))).load(print)
