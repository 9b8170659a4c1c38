"""Writes tiny GGUF files out of tiny Hugging Face weights, the way converters for Llama do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from mainspring.plugins.models.config import LlamaConfig, from_hf
from mainspring.plugins.models.gguf import canonical_name
from mainspring.plugins.models.tiny import CONFIG, random_weights

Write = Callable[..., tuple[LlamaConfig, dict[str, torch.Tensor]]]


def gguf_names(config: LlamaConfig) -> dict[str, str]:
    """Canonical name -> GGUF name."""
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    names = [f"blk.{layer}.{part}.weight" for layer in range(config.num_layers) for part in parts]
    return {canonical_name(name): name for name in [*names, "token_embd.weight", "output_norm.weight", "output.weight"]}


def interleaved(weight: Any, heads: int) -> Any:
    """Rows of each head with the two rotary halves interleaved, as Llama GGUFs store them."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def write_gguf() -> Write:
    """``write_gguf(path, kind, drop=(), extra={}, fields={}, **config)``: matrices are stored as ``kind``.

    Returns the configuration and the weights as a reader should find them (dequantised).
    """

    def write(
        path: Path,
        kind: Kind = Kind.F32,
        drop: tuple[str, ...] = (),
        extra: dict[str, Any] | None = None,
        fields: dict[str, Any] | None = None,
        architecture: str = "llama",
        **overrides: Any,
    ) -> tuple[LlamaConfig, dict[str, torch.Tensor]]:
        config = from_hf({**CONFIG, **overrides}, (), path.stem, "test")
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(config.num_layers)
        writer.add_context_length(config.max_positions)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.ffn_size)
        writer.add_head_count(config.num_heads)
        writer.add_head_count_kv(config.num_kv_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_layer_norm_rms_eps(config.norm_eps)
        writer.add_rope_freq_base(config.rope_theta)
        writer.add_eos_token_id(2)
        writer.add_token_list(["a", "b"])
        for key, value in (fields or {}).items():
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        names, kept = gguf_names(config), {}
        for name, weight in random_weights(config, seed=5).items():
            if names[name] in drop:
                continue
            values: Any = weight.numpy()
            of_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
            heads = next((count for part, count in of_heads.items() if part in name), None)
            if heads:
                values = interleaved(values, heads)
            stored = kind if values.ndim == 2 else Kind.F32
            raw = gguf.quantize(np.ascontiguousarray(values), stored)
            writer.add_tensor(names[name], raw, raw_dtype=stored)
            back: Any = gguf.dequantize(raw, stored).astype(np.float32).reshape(values.shape)
            if heads:
                back = back.reshape(heads, -1, 2, back.shape[1]).swapaxes(1, 2).reshape(back.shape)
            kept[name] = torch.from_numpy(back.copy())
        for name, values in (extra or {}).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return config, kept

    return write
