"""Rope scaling against transformers, at and beyond the original context (H-02, H-03, H-04, H-12)."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from tests.executors.reference import engine_config, reference, simulated, tokenwise_logits, whole_logits

from mainspring.core.errors import ConfigError
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model

ORIGINAL = 32
IDS = Random(7).choices(range(128), k=2 * ORIGINAL + 6)
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 3.0, "original_max_position_embeddings": ORIGINAL},
    "yarn-constants": {"factor": 4.0, "beta_fast": 8.0, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False},
    "yarn-mscale": {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.4},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
}


def write(folder: Path, name: str, spelling: str = "rope_scaling.rope_type", **overrides: Any) -> Any:
    """A tiny model with the scaling ``name``, its stated length before scaling except for llama3 and default."""
    kind = name.partition("-")[0]
    table, key = spelling.split(".")
    stated = ORIGINAL if kind in ("linear", "dynamic", "yarn") else 128
    fields: dict[str, Any] = {
        table: SCALINGS[name] | {key: kind},
        "max_position_embeddings": stated,
        "rope_theta": 500.0,
    }
    return write_tiny_model(folder, seed=4, **(fields | overrides))


def lengths_of(scaling: str) -> list[int]:
    return [1, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 2 * ORIGINAL, len(IDS)]


@pytest.mark.parametrize("chunk", [1, 13, 1000])
@pytest.mark.parametrize("name", SCALINGS)
def test_logits_at_and_beyond_the_original_context_h03(start: Any, tmp_path: Path, name: str, chunk: int) -> None:
    """``dynamic`` has one well-defined answer for any chunks: that of feeding token by token."""
    write(tmp_path, name)
    model = reference(tmp_path)
    driver = start(tmp_path, max_context=3 * ORIGINAL)
    expected = tokenwise_logits(model, IDS) if name == "dynamic" else whole_logits(model, IDS)
    ends = sorted({*range(chunk, len(IDS), chunk), len(IDS)} | set(lengths_of(name)))
    for begin, end in zip([0, *ends], ends, strict=False):
        driver.run(driver.row("a", begin, IDS[begin:end], True))
    torch.testing.assert_close(torch.cat(driver.logits), expected[[end - 1 for end in ends]], rtol=1e-3, atol=1e-4)


def test_the_scalings_differ(start: Any, tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    seen: list[torch.Tensor] = []
    for name in SCALINGS:
        write(tmp_path / name, name)
        driver = start(tmp_path / name, max_context=3 * ORIGINAL)
        driver.run(driver.row("a", 0, IDS, True))
        assert all((driver.logits[-1] - other).abs().max() > 0.1 for other in seen), name
        seen.append(driver.logits[-1])


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3"])
def test_old_and_new_spellings_are_one_model_h02_h12(start: Any, tmp_path: Path, name: str) -> None:
    spellings = ["rope_scaling.type", "rope_scaling.rope_type", "rope_parameters.rope_type"]
    configs, logits = [], []
    for number, spelling in enumerate(spellings):
        folder = tmp_path / str(number)
        configs.append(write(folder, name, spelling))
        if number == 2:  # as transformers 5 writes it: the base inside the table, and nothing beside it
            fields = json.loads((folder / "config.json").read_text())
            fields["rope_parameters"]["rope_theta"] = fields.pop("rope_theta")
            (folder / "config.json").write_text(json.dumps(fields))
        driver = start(folder)
        driver.run(driver.row("a", 0, IDS[:30], True))
        logits.append(driver.logits[0])
    assert {(config.rope, config.max_positions) for config in configs} == {(configs[0].rope, configs[0].max_positions)}
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])


def test_files_of_this_transformers_are_read_h12(start: Any, tmp_path: Path) -> None:
    """What ``save_pretrained`` writes now."""
    write(tmp_path / "ours", "llama3")
    model = reference(tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    assert "rope_theta" not in json.loads((tmp_path / "theirs/config.json").read_text())
    driver = start(tmp_path / "theirs")
    driver.run(driver.row("a", 0, IDS, True))
    torch.testing.assert_close(driver.logits[0], whole_logits(model, IDS)[-1:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "overrides", "limit", "most"),
    [
        ("default", {}, 128, 128),
        ("llama3", {}, 128, 128),  # the stated length is the scaled one
        ("yarn", {}, 3 * ORIGINAL, 3 * ORIGINAL),  # stated before scaling
        ("yarn", {"max_position_embeddings": 3 * ORIGINAL}, 3 * ORIGINAL, 3 * ORIGINAL),  # stated after it
        ("yarn-mscale", {}, 4 * ORIGINAL, 4 * ORIGINAL),  # original length absent: the stated one
        ("linear", {}, ORIGINAL, 3 * ORIGINAL),
        ("dynamic", {}, ORIGINAL, 3 * ORIGINAL),
    ],
)
def test_the_derived_limit_is_never_scaled_twice_h04(
    start: Any, tmp_path: Path, name: str, overrides: dict[str, Any], limit: int, most: int
) -> None:
    config = write(tmp_path, name, **overrides)
    assert config.max_positions == limit
    start(tmp_path, max_context=most)
    with pytest.raises(ConfigError, match=rf"model\.max_context = {most + 1}: .* supports 1 to {most} positions"):
        start(tmp_path, max_context=most + 1)
    driver = start(tmp_path)
    driver.run(driver.row("a", 0, [1] * limit, True))  # the last allowed position works


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope_scaling.rope_type = 'longrope' is not supported.*valid: def",
        ),
        ({"rope_scaling": {"type": "lineal", "factor": 2.0}}, "did you mean 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, "key 'rope_scaling.factor' is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope factor = 0.5: expected at least 1"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "'rope_parameters.low_freq_factor' is missing"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "beta": 1}},
            "rope_scaling.beta = 1 means nothing to rope type",
        ),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling.factor = '2': expected a number"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear': expected a table"),
        ({"rope_parameters": {"rope_theta": 5000.0}}, "rope_theta = 10000.0 and rope_parameters.rope_theta = 5000.0"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "yarn"}}, "both given and differ"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not supported"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_not_understood_is_refused_by_name_h03(tmp_path: Path, overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write_tiny_model(tmp_path, **overrides)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("name", ["llama3", "linear", "dynamic", "yarn"])
def test_a_whole_engine_answers_beyond_the_original_context_h03(tmp_path: Path, name: str, family: str) -> None:
    """32 greedy tokens in mixed batches, with chunked prefill, preemption and prefix hits."""
    architecture: dict[str, Any] = {}
    if family == "qwen3":
        architecture = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    write(tmp_path, name, tie_word_embeddings=False, **architecture)
    made = engine_config(tmp_path, 48, "prefix")
    config = msgspec.structs.replace(made, model=msgspec.structs.replace(made.model, max_context=3 * ORIGINAL))
    prompts = [IDS[: ORIGINAL + 12], IDS[: ORIGINAL + 20], IDS[30 : ORIGINAL + 36], IDS[:ORIGINAL] + IDS[50:60]]
    sim, out = simulated(executor := TorchExecutor(None, config), config, prompts, 32)
    executor.close()
    finishes = [row.finish for emit in sim.emitted for row in emit.rows if row.finish]
    assert sum(finish.num_preemptions for finish in finishes) > 0
    assert sum(finish.usage.cached for finish in finishes) > 0
    model = reference(tmp_path)
    logits = tokenwise_logits if name == "dynamic" else whole_logits
    for prompt, ids in zip(prompts, out, strict=True):
        assert len(ids) == 32
        assert logits(model, prompt + ids)[len(prompt) - 1 : -1].argmax(-1).tolist() == ids
