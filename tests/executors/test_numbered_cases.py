"""Cases of model loading that need logits and have no better place (H-01, H-05, H-10, H-11)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from tests.executors.conftest import BACKENDS
from tests.executors.reference import engine_config, greedy_ids, reference, simulated, whole_logits
from tests.native_kernels import native_library

from mainspring.core.errors import ConfigError
from mainspring.core.messages import FinishReason
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.checkpoint import open_model
from mainspring.plugins.models.tiny import random_weights, write_tiny_model

IDS = Random(3).choices(range(128), k=30)


def last_logits(start: Any, folder: Path) -> torch.Tensor:
    driver = start(folder)
    driver.run(driver.row("a", 0, IDS, True))
    logits: torch.Tensor = driver.logits[0]
    return logits


def test_tied_weights_with_and_without_the_head_in_the_file_h01(start: Any, tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "without")
    weights = random_weights(config)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    write_tiny_model(tmp_path / "with", weights=weights)
    expected = whole_logits(reference(tmp_path / "without"), IDS)[-1:]
    for name in ("with", "without"):
        torch.testing.assert_close(last_logits(start, tmp_path / name), expected, rtol=1e-4, atol=1e-5)


def test_the_pool_is_sized_by_an_explicit_head_size_h05(start: Any, tmp_path: Path) -> None:
    write_tiny_model(tmp_path, hidden_size=64, num_attention_heads=4, head_dim=32, num_key_value_heads=2)
    torch.testing.assert_close(
        last_logits(start, tmp_path), whole_logits(reference(tmp_path), IDS)[-1:], rtol=1e-4, atol=1e-5
    )
    driver = start(tmp_path)
    assert driver.executor._loaded.ledger.kv == 64 * 4 * 2 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("biased", ["q_proj", "o_proj"])
def test_a_bias_that_the_configuration_denies_is_named_h10(tmp_path: Path, biased: str) -> None:
    """Dropped, it would make nonsense of the output; so a flag that is missing does not mean that."""
    write_tiny_model(tmp_path)
    file, name = tmp_path / "model.safetensors", f"model.layers.1.self_attn.{biased}.bias"
    save_file(load_file(file) | {name: torch.ones(64)}, file)
    with pytest.raises(ConfigError, match=name):
        open_model(tmp_path)


def test_qwen2_needs_its_biases_h10(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    config = write_tiny_model(tmp_path, **fields)
    weights = random_weights(config)
    weights.pop("model.layers.0.self_attn.v_proj.bias")
    write_tiny_model(tmp_path, weights=weights, **fields)
    with pytest.raises(ConfigError, match=r"1 tensor\(s\) missing: model\.layers\.0\.self_attn\.v_proj\.bias"):
        open_model(tmp_path)


def test_an_overflow_ends_its_request_and_nobody_elses_h11(tmp_path: Path) -> None:
    """Token 77 overflows; its neighbours, and those who get its blocks afterwards, notice nothing."""
    config = write_tiny_model(tmp_path, tie_word_embeddings=False)
    weights = random_weights(config)
    weights["model.embed_tokens.weight"][77] = torch.inf
    write_tiny_model(tmp_path, weights=weights, tie_word_embeddings=False)
    healthy = [Random(seed).choices(range(77), k=12) for seed in range(6)]
    prompts = [*healthy[:3], [5, 77, 6], *healthy[3:]]
    engine = engine_config(tmp_path, 16)
    sim, made = simulated(executor := TorchExecutor(None, engine), engine, prompts, 12)
    executor.close()
    finishes = {row.rid: row.finish for emit in sim.emitted for row in emit.rows if row.finish}
    assert finishes["3"].reason is FinishReason.ERROR
    assert "hold NaN" in finishes["3"].failure.message
    model = reference(tmp_path)
    for index, prompt in enumerate(prompts):
        if index != 3:
            assert made[index] == greedy_ids(model, prompt, 12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scaled", ["k_proj", "v_proj"])
def test_keys_and_values_beyond_half_precision_end_their_request_only_h11(
    tmp_path: Path, scaled: str, backend: str
) -> None:
    """A layer makes of token 77 keys or values beyond 65,504: nothing to fp32, infinities in an fp16 cache."""
    if backend == "native":
        native_library()
    config = write_tiny_model(tmp_path, tie_word_embeddings=False)
    weights = random_weights(config)
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, 5] = 0.0  # a direction that only token 77 has, and of which only the first layer's keys or values know
    embedding[77] = 0.0
    embedding[77, 5] = 1.0
    weights[f"model.layers.0.self_attn.{scaled}.weight"][:, 5] *= 1e6
    write_tiny_model(tmp_path, weights=weights, tie_word_embeddings=False)
    healthy = [Random(seed).choices(range(77), k=12) for seed in range(6)]
    prompts = [*healthy[:3], [5, 77, 6], *healthy[3:]]
    model = reference(tmp_path)
    for kind in ("fp16", "fp32"):
        engine = engine_config(tmp_path, 16)
        engine = structs.replace(engine, executor=structs.replace(engine.executor, kv_dtype=kind))
        sim, made = simulated(executor := BACKENDS[backend](None, engine), engine, prompts, 12)
        executor.close()
        finishes = {row.rid: row.finish for emit in sim.emitted for row in emit.rows if row.finish}
        if kind == "fp16":
            assert finishes.pop("3").failure.message.endswith("hold NaN")
            assert len(made[3]) == 0
        assert {finish.reason for finish in finishes.values()} == {FinishReason.LENGTH}
        for index, prompt in enumerate(prompts):
            if index != 3:
                assert made[index] == greedy_ids(model, prompt, 12)
