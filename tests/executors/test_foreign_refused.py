"""What cannot go through transformers' attention interface, or is damaged, is refused by name (H-03, H-08, H-09)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.executors.test_foreign import SIZES, write

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.errors import ConfigError
from mainspring.plugins.executors import foreign_attention
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, ModelConfig


def load(folder: Path, **options: Any) -> list[str]:
    """What the load said."""
    said: list[str] = []
    formats: dict[str, Any] = {"dtype": "fp32", "kv_dtype": "fp32", "weights": "fp32"}
    config = Config(
        executor=ExecutorConfig(threads=1, **(formats | options)),
        allocator=AllocatorConfig(num_blocks=16),
        model=ModelConfig(path=str(folder)),
    )
    executor = TorchExecutor(None, config)
    executor.load(said.append)
    executor.close()
    return said


def change(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_the_load_says_that_it_is_slower(tmp_path: Path) -> None:
    write(tmp_path, "GemmaConfig")
    said = load(tmp_path)
    assert "GemmaForCausalLM is no family of this package: transformers' own modules run it, slower" in said[0]


def test_bf16_passes_its_trial(tmp_path: Path) -> None:
    write(tmp_path, "OlmoConfig")
    load(tmp_path, weights="bf16", kv_dtype="bf16")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("XGLMConfig", "XGLMForCausalLM computes its attention itself"),
        ("BartConfig", "BartForCausalLM does not take positions"),
        ("MambaConfig", "MambaForCausalLM has layers of type 'linear_attention', which is not supported"),
    ],
)
def test_models_that_attend_themselves(tmp_path: Path, config: str, said: str) -> None:
    sizes = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
    if config in ("XGLMConfig", "BartConfig"):
        sizes |= {
            "d_model": 64,
            "ffn_dim": 64,
            "num_layers": 2,
            "attention_heads": 4,
            "decoder_layers": 2,
            "decoder_ffn_dim": 64,
            "decoder_attention_heads": 4,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        }
    kind = getattr(transformers, config)
    transformers.AutoModelForCausalLM.from_config(kind(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architectures": ["GemaForCausalLM"]}, "'GemaForCausalLM' is not supported.*did you mean 'GemmaForCausalLM'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported through"),
        ({"rope_scaling": {"type": "longrope"}}, "rope type 'longrope' is not supported through transformers"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quant_method = 'gptq' is not supported"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "type 'chunked_attention', which is not supported"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_settings_are_refused_before_weights_are_read(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    write(tmp_path, "GemmaConfig")
    change(tmp_path, **fields)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path)


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    write(tmp_path, "GemmaConfig")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    norm = tensors.pop("model.norm.weight")
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"1 tensor\(s\) missing: model\.norm\.weight"):
        load(tmp_path)
    save_file(tensors | {"model.norm.weight": norm, "model.extra": norm.clone()}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"no place for: model\.extra"):
        load(tmp_path)
    save_file(tensors | {"model.norm.weight": torch.ones(63)}, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"model\.norm\.weight"):
        load(tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match="but no weights"):
        load(tmp_path)


def test_attention_that_is_not_the_models_own_does_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial after loading finds what no name gives away: here a soft-cap that is left out."""
    write(tmp_path, "Gemma2Config")
    load(tmp_path)
    plain = foreign_attention._attention
    monkeypatch.setattr(
        foreign_attention, "_attention", lambda q, k, v, call, begin: plain(q, k, v, call._replace(softcap=0.0), begin)
    )
    with pytest.raises(ConfigError, match=r"Gemma2ForCausalLM: .* the logits are .* off"):
        load(tmp_path)


def test_a_model_that_fails_while_it_is_tried_does_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*parts: Any) -> torch.Tensor:
        raise RuntimeError("sizes 4 and 8")

    write(tmp_path, "GemmaConfig")
    monkeypatch.setattr(foreign_attention, "_attention", fail)
    with pytest.raises(ConfigError, match="GemmaForCausalLM failed while it was tried: RuntimeError: sizes 4 and 8"):
        load(tmp_path)


def test_sizes_are_those_of_the_models_attention(tmp_path: Path) -> None:
    write(tmp_path, "PhiConfig", **SIZES | {"num_key_value_heads": 1})
    config = Config(
        executor=ExecutorConfig(threads=1, dtype="fp32", kv_dtype="fp32", weights="fp32"),
        allocator=AllocatorConfig(num_blocks=16),
        model=ModelConfig(path=str(tmp_path)),
    )
    executor = TorchExecutor(None, config)
    info = executor.load(lambda line: None)
    executor.close()
    assert info.memory["kv"] == 16 * 16 * 2 * 2 * 1 * 16 * 4  # blocks, tokens, layers, key and value, heads, dim, bytes
    assert (info.vocab_size, info.max_context, info.end_token_ids) == (128, 128, (2,))
