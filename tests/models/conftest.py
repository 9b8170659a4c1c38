"""Writes tiny GGUF files out of tiny Hugging Face weights, the way converters do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from mainspring.plugins.models.config import LlamaConfig
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.gguf import canonical_name
from mainspring.plugins.models.tiny import CONFIG, random_weights

Write = Callable[..., tuple[LlamaConfig, dict[str, torch.Tensor]]]


def gguf_names(config: LlamaConfig) -> dict[str, str]:
    """Canonical name -> GGUF name."""
    attention = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm")
    names = [
        f"blk.{layer}.{part}.{kind}"
        for layer in range(config.num_layers)
        for part in (*attention, "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
        for kind in ("weight", "bias")
    ]
    return {canonical_name(name): name for name in [*names, "token_embd.weight", "output_norm.weight", "output.weight"]}


def interleaved(values: Any, heads: int) -> Any:
    """Rows of each head with the two rotary halves interleaved, as files of architecture llama store them."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def random_blocks(shape: tuple[int, ...], kind: Kind, seed: int) -> Any:
    """Bytes of a matrix in a k-quant, which the package can read and not make: random, with scales that keep the
    values below a tenth."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(seed).integers(0, 256, (shape[0], shape[1] // elements, size), dtype=np.uint8)
    scales = {Kind.Q4_K: (0, [0.0001, 0.0008]), Kind.Q6_K: (size - 2, [0.00002])}
    at, values = scales[kind]
    blocks[..., at : at + 2 * len(values)] = np.array(values, np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


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
        writer.add_rope_freq_base(config.rope.theta)
        writer.add_eos_token_id(2)
        writer.add_token_list(["a", "b"])
        for key, value in (fields or {}).items():
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
        names = gguf_names(config)
        kept: dict[str, torch.Tensor] = {}
        for name, weight in random_weights(config, seed=5).items():
            if names[name] in drop:
                continue
            values: Any = weight.numpy()
            of_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if architecture == "llama" else {}
            heads = next((count for part, count in of_heads.items() if part in name), None)
            if heads:
                values = interleaved(values, heads)
            stored = kind if values.ndim == 2 else Kind.F32
            if stored in (Kind.Q4_K, Kind.Q6_K):
                raw = random_blocks(values.shape, stored, len(kept))
            else:
                raw = gguf.quantize(np.ascontiguousarray(values), stored)
            writer.add_tensor(names[name], raw, raw_dtype=stored)
            back: Any = gguf.dequantize(raw, stored).astype(np.float32).reshape(values.shape)
            if heads:
                back = back.reshape(heads, -1, 2, *back.shape[1:]).swapaxes(1, 2).reshape(back.shape)
            kept[name] = torch.from_numpy(back.copy())
        for name, values in (extra or {}).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return config, kept

    return write
