"""The embedded model against transformers on the same dequantised weights, in float32."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.embedded import default_model_path
from mainspring.plugins.settings import Config

GOLDEN = Path(__file__).parents[1] / "golden"
BLOCK_SIZE, NUM_BLOCKS = 16, 400


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchExecutor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        made = TorchExecutor(
            None,
            Config(
                executor=ExecutorConfig(dtype="fp32", weights="fp32", kv_dtype="fp32", memory="3GiB"),
                allocator=AllocatorConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS),
            ),
        )
        made.load(print)
        yield made
        made.close()


@pytest.fixture(scope="module")
def reference() -> Any:
    """Made by the same code that made the golden file."""
    spec = importlib.util.spec_from_file_location("make_greedy_reference", GOLDEN / "make_greedy_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference_model(default_model_path())


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((GOLDEN / "greedy_reference.json").read_text())["cases"]
    return loaded


def test_the_golden_file_is_what_it_says(cases: list[dict[str, Any]]) -> None:
    lengths = [len(case["prompt_ids"]) for case in cases]
    assert len(cases) == 32
    assert (min(lengths), max(lengths)) == (1, 700)
    assert all(len(case["output_ids"]) == 64 for case in cases)


def test_logits_match_transformers(
    executor: TorchExecutor, reference: Any, cases: list[dict[str, Any]], driver_of: Any
) -> None:
    """Every position of a chunked prompt's continuation, recomputed as a whole by transformers."""
    for index in (3, 9, 13, 27):
        prompt, output = cases[index]["prompt_ids"], cases[index]["output_ids"][:8]
        driver = driver_of(executor, NUM_BLOCKS, BLOCK_SIZE)
        driver.generate([prompt], 8, chunk=19)
        with torch.inference_mode():
            whole = reference(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        torch.testing.assert_close(torch.cat(driver.logits), whole, rtol=1e-3, atol=2e-3)


def test_greedy_ids_match_the_golden_file(executor: TorchExecutor, cases: list[dict[str, Any]], driver_of: Any) -> None:
    """Twelve prompts at once, joining late, in chunks of 96 tokens."""
    chosen = [case for case in cases if len(case["prompt_ids"]) < 120][::2][:12]
    driver = driver_of(executor, NUM_BLOCKS, BLOCK_SIZE, seed=1)
    made = driver.generate([case["prompt_ids"] for case in chosen], 24, chunk=96, stagger=1)
    assert made == [case["output_ids"][:24] for case in chosen]


def test_logits_of_the_cached_path_are_those_of_recomputation(
    executor: TorchExecutor, cases: list[dict[str, Any]], driver_of: Any
) -> None:
    """Chunks of 19 tokens and decode steps against one prefill of everything, in the same engine.

    rtol 1e-4 with atol 1e-5 holds for the tiny model; here, where logits reach 40, it holds for 99 % of them, and
    the others (small ones) are off by less than 1e-5 of the row's largest.  Measured: 0.2 to 0.8 % and 3e-6.
    """
    for index in (3, 13, 27):
        prompt, output = cases[index]["prompt_ids"], cases[index]["output_ids"][:6]
        driver = driver_of(executor, NUM_BLOCKS, BLOCK_SIZE)
        driver.generate([prompt], 6, chunk=19)
        cached = torch.cat(driver.logits)
        again = driver_of(executor, NUM_BLOCKS, BLOCK_SIZE, seed=5)
        for count in range(6):
            again.run(again.row(str(count), 0, prompt + output[:count], True))
        whole = torch.cat(again.logits)
        off = (cached - whole).abs()
        assert (off > 1e-5 + 1e-4 * whole.abs()).float().mean() < 0.02
        assert (off < 1e-5 * whole.abs().amax(-1, keepdim=True)).all()
        assert torch.equal(cached.argmax(-1), whole.argmax(-1))
