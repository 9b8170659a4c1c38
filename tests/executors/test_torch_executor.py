"""The executor around the model: what it reports, keeps and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.errors import ConfigError, EngineFault
from mainspring.core.messages import StepLaunch
from mainspring.core.policy import SampleOutput
from mainspring.plugins.executors.auto import AutoExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, ModelConfig


def test_info_of_auto_says_what_and_why(tiny: Path) -> None:
    executor = AutoExecutor(None, Config(model=ModelConfig(path=str(tiny)), executor=ExecutorConfig(threads=1)))
    said: list[str] = []
    info = executor.load(said.append)
    executor.close()
    assert info.detail.startswith(("auto chose native (not cupy: ", "auto chose torch (not native: "))
    assert said[0] in info.detail
    assert (info.model, info.vocab_size, info.max_context, info.end_token_ids) == (tiny.name, 128, 256, (2,))
    assert set(info.memory) == {"weights", "workspace", "kv", "overhead"}
    assert info.num_blocks == 256 * 256 // 16
    assert info.memory["kv"] == info.num_blocks * 16 * 2 * 2 * 2 * 16 * (4 if "KV fp32" in info.detail else 2)


def test_the_ledger_counts_the_weights_that_are_kept(start: Any, tiny: Path) -> None:
    driver = start(tiny)
    config = driver.executor.config
    info = TorchExecutor(None, config).load(print)
    assert driver.executor._loaded.network.ops.weight_bytes() == info.memory["weights"]


def test_context_limit_is_checked_h04(start: Any, tiny: Path) -> None:
    start(tiny, max_context=256)
    with pytest.raises(ConfigError, match=r"model\.max_context = 257: .* supports 1 to 256 positions"):
        start(tiny, max_context=257)


def test_the_last_allowed_position_works_and_the_next_is_refused_h04(start: Any, tiny: Path) -> None:
    driver = start(tiny, num_blocks=80)
    driver.run(driver.row("a", 0, [5] * 255, True))
    driver.run(driver.row("a", 255, None, True))
    with pytest.raises(EngineFault, match="a: 257 tokens, the context holds 256"):
        driver.run(driver.row("a", 256, None, True))


def test_last_ids_are_kept_until_release(start: Any, tiny: Path) -> None:
    driver = start(tiny)
    first = driver.run(driver.row("a", 0, [5, 6], True)).token_ids
    explicit = start(tiny)
    explicit.run(explicit.row("a", 0, [5, 6], True))
    explicit.run(explicit.row("a", 2, first, True))
    driver.run(driver.row("b", 0, [9], False))  # a step without "a", and without any sampling row
    driver.run(driver.row("a", 2, None, True))
    torch.testing.assert_close(driver.logits[-1], explicit.logits[-1])
    driver.run(released=("a",))
    with pytest.raises(EngineFault, match="a: a row without ids"):
        driver.run(driver.row("a", 3, None, True))


def test_result_aligns_ids_failures_and_times(start: Any, tiny: Path) -> None:
    driver = start(tiny)
    rows = (driver.row("a", 0, [5], True), driver.row("b", 0, [6, 7], False), driver.row("c", 0, [8], True))
    plans: list[Any] = []

    def sample(logits: Any, plan: Any) -> SampleOutput:
        plans.append(plan)
        assert logits.shape == (2, 128)
        assert logits.dtype == torch.float32
        logits.zero_()  # the sampler may overwrite them
        return SampleOutput([3, 4], [(1, "no finite logit")])

    result = driver.executor.execute(StepLaunch(5, rows, "the plan"), sample)
    assert plans == ["the plan"]
    assert (result.step, result.rids, result.token_ids) == (5, ("a", "c"), (3, 4))
    assert result.failed == (("c", "no finite logit"),)
    assert 0 < result.launched < result.finished


def test_a_step_without_sampling_rows_never_calls_the_sampler(start: Any, tiny: Path) -> None:
    driver = start(tiny)
    result = driver.run(driver.row("a", 0, [5, 6], False))
    assert (result.rids, result.token_ids, driver.logits) == ((), (), [])


def test_execute_before_load_and_after_close(start: Any, tiny: Path) -> None:
    driver = start(tiny)
    rows = driver.row("a", 0, [5], True)
    driver.executor.close()
    with pytest.raises(EngineFault, match="before load"):
        driver.run(rows)


def test_pool_that_does_not_fit_says_so_e14(tiny: Path) -> None:
    config = Config(model=ModelConfig(path=str(tiny)), allocator=AllocatorConfig(num_blocks=2**40))
    with pytest.raises(ConfigError, match=r"allocator\.num_blocks = 1099511627776: .* need .* GiB"):
        TorchExecutor(None, config).load(print)
