"""Random tiny models on disk, for tests and demonstrations: a Hugging Face folder that loads in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .config import LlamaConfig
from .config_hf import from_hf
from .hf import INDEX, SINGLE

#: ``config.json`` of the default tiny model: two layers, four heads that share two key/value heads.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def random_weights(config: LlamaConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Every tensor of ``config``, float32, scaled so that logits spread over a few units."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in config.tensor_shapes().items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            out[name] = values * (1.5 / shape[1] ** 0.5)
        else:
            out[name] = 0.3 * values if name.endswith("bias") else 1 + 0.1 * values
    return out


def write_tiny_model(
    folder: Path, seed: int = 0, shards: int = 1, weights: dict[str, torch.Tensor] | None = None, **overrides: Any
) -> LlamaConfig:
    """Write ``config.json`` and safetensors (with an index if ``shards`` > 1) into ``folder``; returns what it is.

    ``weights`` are random by ``seed`` unless given.  ``overrides`` replace keys of ``config.json``; None removes one.
    """
    fields = {key: value for key, value in (CONFIG | overrides).items() if value is not None}
    config = from_hf(fields, (), folder.name, str(folder))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    weights = random_weights(config, seed) if weights is None else weights
    if shards == 1:
        save_file(weights, folder / SINGLE, metadata={"format": "pt"})
        return config
    weight_map: dict[str, str] = {}
    for index in range(shards):
        file = f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(weights.items())[index::shards])
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return config
