"""Every family over the operators against transformers, tiny and random, in float32 (H-01, H-05, H-06, H-10)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.executors.reference import (
    FAMILIES,
    engine_config,
    greedy_ids,
    reference,
    simulated,
    whole_logits,
)

from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model

NEW_TOKENS = 32
SHARED = Random(9).choices(range(128), k=20)
#: One shorter than a window of 8, one as long, one longer; one of several chunks; two with a common beginning.
PROMPTS = [[5, 6, 7], Random(1).choices(range(128), k=8), list(range(20, 29)), [*SHARED, 3], [*SHARED, 4, 5]]


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    write_tiny_model(folder, seed=2, **FAMILIES[request.param])
    return folder, reference(folder)


@pytest.fixture(scope="module")
def expected(family: tuple[Path, Any]) -> list[list[int]]:
    return [greedy_ids(family[1], prompt, NEW_TOKENS) for prompt in PROMPTS]


def test_logits_and_32_greedy_tokens_in_mixed_batches_and_chunks(
    start: Any, family: tuple[Path, Any], expected: list[list[int]]
) -> None:
    folder, model = family
    for chunk in (1, 5, 1000):
        driver = start(folder, num_blocks=256, seed=chunk)
        assert driver.generate(PROMPTS, NEW_TOKENS, chunk, stagger=1) == expected
    driver = start(folder)
    driver.generate(PROMPTS[3:4], NEW_TOKENS, chunk=7)
    whole = whole_logits(model, PROMPTS[3] + expected[3])[len(PROMPTS[3]) - 1 : -1]
    torch.testing.assert_close(torch.cat(driver.logits), whole, rtol=1e-3, atol=1e-4)


def test_every_position_of_a_long_prompt_h06(start: Any, family: tuple[Path, Any]) -> None:
    """Whole, in chunks and token by token: each position's logits, far beyond the window."""
    folder, model = family
    ids = Random(4).choices(range(128), k=40)
    whole = whole_logits(model, ids)
    for chunk in (1, 6, 40):
        driver = start(folder)
        for at in range(0, len(ids), chunk):
            driver.run(driver.row("a", at, ids[at : at + chunk], True))
        last = [min(at + chunk, len(ids)) - 1 for at in range(0, len(ids), chunk)]
        torch.testing.assert_close(torch.cat(driver.logits), whole[last], rtol=1e-3, atol=1e-4)


def test_preemption_and_prefix_hits_change_nothing(family: tuple[Path, Any], expected: list[list[int]]) -> None:
    folder, _ = family
    for use, num_blocks in (("paged", 24), ("prefix", 24), ("prefix", 64)):
        config = engine_config(folder, num_blocks, use)
        sim, made = simulated(executor := TorchExecutor(None, config), config, PROMPTS, NEW_TOKENS)
        executor.close()
        finishes = [row.finish for emit in sim.emitted for row in emit.rows if row.finish]
        assert made == expected
        assert num_blocks > 24 or sum(finish.num_preemptions for finish in finishes) > 0
        assert use == "paged" or sum(finish.usage.cached for finish in finishes) > 0
