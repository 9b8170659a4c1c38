"""The embedded model in its file's own blocks: close to float32, and how close, teacher forced on the golden cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.native_kernels import native_library

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.settings import Config

pytestmark = pytest.mark.slow
BLOCK = 16
CASES = json.loads((Path(__file__).parents[1] / "golden" / "greedy_reference.json").read_text())["cases"]
SHORT = sorted(CASES, key=lambda case: len(case["prompt_ids"]))[4:16]


def forced(**options: Any) -> tuple[torch.Tensor, str]:
    """Logits of every golden token ``[tokens, vocab]``, each case in one step; and what the executor says of itself."""
    native_library()
    executor = NativeExecutor(
        None,
        Config(
            executor=ExecutorConfig(threads=2, **options), allocator=AllocatorConfig(block_size=BLOCK, num_blocks=64)
        ),
    )
    info = executor.load(print)
    assert executor._loaded is not None
    out = []
    for case in SHORT:
        prompt, made = case["prompt_ids"], case["output_ids"]
        ids = np.asarray(prompt + made[:-1], np.int32)
        positions = np.arange(len(ids), dtype=np.int32)
        rows = np.arange(len(prompt) - 1, len(ids), dtype=np.int32)
        table = np.arange(-(-len(ids) // BLOCK), dtype=np.int32)[None]
        batch = StepBatch(
            ids, positions, positions, np.asarray([0, len(ids)], np.int32), np.asarray([len(ids)], np.int32), table,
            rows, 1, ("a",),
        )  # fmt: skip
        with torch.inference_mode():
            logits = executor._loaded.network.forward(batch)
        assert logits is not None
        out.append(logits)
    executor.close()
    return torch.cat(out), info.detail


@pytest.fixture(scope="module")
def exact() -> torch.Tensor:
    logits, _ = forced(dtype="fp32")
    wanted = [token for case in SHORT for token in case["output_ids"]]
    assert logits.argmax(-1).tolist() == wanted
    return logits


@pytest.mark.parametrize(
    ("options", "largest", "same"),
    [
        ({}, 0.1, 0.99),
        ({"kv_dtype": "fp16"}, 0.3, 0.99),
        ({"dtype": "fast"}, 6.0, 0.9),
        ({"dtype": "bf16"}, 3.0, 0.95),
    ],
    ids=str,
)
def test_close_to_float32(exact: torch.Tensor, options: dict[str, str], largest: float, same: float) -> None:
    logits, detail = forced(**options)
    print(f"{options}: largest {float((logits - exact).abs().max()):.3g}")
    assert detail.startswith("native kernels (")
    assert float((logits - exact).abs().max()) < largest
    assert float((logits.argmax(-1) == exact.argmax(-1)).float().mean()) >= same
    assert not torch.equal(logits, exact)
