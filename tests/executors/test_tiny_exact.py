"""A random tiny Llama, step by step, against transformers in float32: whatever the batch, the chunks, the blocks."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from mainspring.plugins.models.tiny import write_tiny_model

NEW_TOKENS = 12
PROMPTS = [[5], [7, 8, 9], list(range(20, 37)), [1] * 8, Random(0).choices(range(128), k=61)]


def reference(folder: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_greedy(model: Any, prompt: list[int]) -> list[int]:
    """Greedy ids by recomputing the whole sequence for every token."""
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def expected(tiny: Path) -> list[list[int]]:
    model = reference(tiny)
    return [reference_greedy(model, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("chunk", [1, 3, 16, 1000])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_greedy_ids_do_not_depend_on_chunk_or_block_size(
    start: Any, tiny: Path, expected: list[list[int]], chunk: int, block_size: int
) -> None:
    driver = start(tiny, block_size=block_size, num_blocks=256)
    assert driver.generate(PROMPTS, NEW_TOKENS, chunk, stagger=2) == expected


@pytest.mark.parametrize("seed", range(3))
def test_greedy_ids_do_not_depend_on_the_batch(start: Any, tiny: Path, expected: list[list[int]], seed: int) -> None:
    chosen = [Random(seed).randrange(len(PROMPTS)) for _ in range(9)]
    driver = start(tiny, num_blocks=512, seed=seed)
    made = driver.generate([PROMPTS[index] for index in chosen], NEW_TOKENS, chunk=7, stagger=seed)
    assert made == [expected[index] for index in chosen]


def test_logits_of_the_cached_path_match_recomputation(start: Any, tiny: Path) -> None:
    prompt = PROMPTS[4]
    driver = start(tiny)
    driver.generate([prompt], NEW_TOKENS, chunk=10)
    with torch.inference_mode():
        made = reference_greedy(model := reference(tiny), prompt)
        whole = model(torch.tensor([prompt + made])).logits[0, len(prompt) - 1 : -1]
    torch.testing.assert_close(torch.cat(driver.logits), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "overrides",
    [
        {"head_dim": 32},  # H-05
        {"num_key_value_heads": 1},
        {"num_key_value_heads": None},  # H-13: as many as heads
        {"tie_word_embeddings": False},
        {"rope_theta": 500000.0, "rms_norm_eps": 1e-3},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 2000.0}},  # H-12
    ],
    ids=str,
)
def test_variants_match_transformers_h05_h12_h13(start: Any, tmp_path: Path, overrides: dict[str, Any]) -> None:
    write_tiny_model(tmp_path, seed=3, **overrides)
    driver = start(tmp_path)
    made = driver.generate([PROMPTS[2]], NEW_TOKENS, chunk=5)
    assert made == [reference_greedy(reference(tmp_path), PROMPTS[2])]


def test_a_dummy_row_changes_nothing_and_is_written_nowhere(start: Any, tiny: Path) -> None:
    plain, padded = start(tiny), start(tiny)
    first = plain.run(plain.row("a", 0, [5, 6, 7], True))
    assert padded.run(padded.row("a", 0, [5, 6, 7], True), padding=(4, 1)).token_ids == first.token_ids
    torch.testing.assert_close(padded.logits[0], plain.logits[0])
    torch.testing.assert_close(padded.executor._loaded.network.ops.keys, plain.executor._loaded.network.ops.keys)


def test_copied_blocks_are_in_place_before_the_step(start: Any, tiny: Path) -> None:
    """A row that continues on a copy of another's block sees the same past."""
    driver = start(tiny, block_size=4)
    driver.run(driver.row("a", 0, [5, 6, 7, 8], True))
    driver.tables["b"] = [driver.free.pop()]
    own, copied = driver.row("a", 4, [9], True), driver.row("b", 4, [9], True)
    result = driver.run(own, copied, copies=((driver.tables["a"][0], driver.tables["b"][0]),))
    assert result.token_ids[0] == result.token_ids[1]
    torch.testing.assert_close(driver.logits[-1][0], driver.logits[-1][1])


def test_bf16_weights_and_kv_stay_near_float32(start: Any, tiny: Path) -> None:
    exact, rounded = start(tiny), start(tiny, weights="bf16", kv_dtype="bf16")
    for driver in (exact, rounded):
        driver.generate([PROMPTS[4]], 1, chunk=20)
    torch.testing.assert_close(rounded.logits[0], exact.logits[0], rtol=0.1, atol=0.2)
    assert not torch.equal(rounded.logits[0], exact.logits[0])
    assert rounded.executor._loaded.network.ops.keys.dtype == torch.bfloat16
