"""Decoders whose modules compute attention themselves, led through transformers' attention interface.

Each adapter replaces ``forward`` of one attention module with the same projections around a call of the attention that
is registered under a name: Falcon, BLOOM and MPT (linear biases, "ALiBi"), GPT-Neo (every other layer sees a window).
The biases are those of the model's own module, so that not even their rounding differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Context length -> what is added to the scaled scores of each key: ``[heads, 1, context]``.
Bias = Callable[[int], torch.Tensor]
#: (module, query, key, value, no mask, **options) -> (``[1, tokens, heads, dim]``, None), as transformers calls it.
Attention = Callable[..., tuple[torch.Tensor, None]]
Forward = Callable[..., Any]


def _bloom(module: Any, layer: int, attention: Attention) -> Forward:
    from transformers.models.bloom import modeling_bloom

    def bias(context: int) -> torch.Tensor:
        ones = torch.ones(1, context, dtype=torch.long)
        made: torch.Tensor = modeling_bloom.build_alibi_tensor(ones, module.num_heads, module.dense.weight.dtype)
        return made

    def forward(hidden_states: torch.Tensor, residual: torch.Tensor, **_options: Any) -> Any:
        query, key, value = module._reshape(module.query_key_value(hidden_states))
        out, _ = attention(module, query, key, value, None, scaling=module.inv_norm_factor, bias=bias, layer_idx=layer)
        return module.dense(out.flatten(2)) + residual, None

    return forward


def _falcon(module: Any, layer: int, attention: Attention) -> Forward:
    from transformers.models.falcon import modeling_falcon

    def bias(context: int) -> torch.Tensor:
        ones = torch.ones(1, context, dtype=torch.long)
        made: torch.Tensor = modeling_falcon.build_alibi_tensor(ones, module.num_heads, module.dense.weight.dtype)
        scaled: torch.Tensor = made * module.inv_norm_factor
        return scaled

    def forward(hidden_states: torch.Tensor, alibi: Any, **options: Any) -> Any:
        parts = module._split_heads(module.query_key_value(hidden_states))
        query, key, value = (part.transpose(1, 2) for part in parts)
        if alibi is None:
            query, key = modeling_falcon.apply_rotary_pos_emb(query, key, *options["position_embeddings"])
        out, _ = attention(
            module, query, key, value, None, scaling=module.inv_norm_factor, layer_idx=layer,
            bias=None if alibi is None else bias,
        )  # fmt: skip
        return module.dense(out.flatten(2)), None

    return forward


def _gpt_neo(module: Any, layer: int, attention: Attention) -> Forward:
    window = module.config.window_size if module.attention_type == "local" else None

    def forward(hidden_states: torch.Tensor, **_options: Any) -> Any:
        query, key, value = (
            module._split_heads(part(hidden_states), module.num_heads, module.head_dim)
            for part in (module.q_proj, module.k_proj, module.v_proj)
        )
        out, _ = attention(module, query, key, value, None, scaling=1.0, sliding_window=window, layer_idx=layer)
        return module.out_proj(out.flatten(2)), None

    return forward


def _mpt(module: Any, layer: int, attention: Attention) -> Forward:
    from transformers.models.mpt import modeling_mpt

    def bias(context: int) -> torch.Tensor:
        made: torch.Tensor = modeling_mpt.build_mpt_alibi_tensor(module.n_heads, context)
        return made

    def forward(hidden_states: torch.Tensor, **_options: Any) -> Any:
        mixed = module.Wqkv(hidden_states)
        if module.clip_qkv:
            mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
        query, key, value = (
            part.unflatten(2, (module.n_heads, module.head_dim)).transpose(1, 2) for part in mixed.chunk(3, dim=2)
        )
        out, _ = attention(module, query, key, value, None, scaling=module.softmax_scale, bias=bias, layer_idx=layer)
        return module.out_proj(out.flatten(2)), None

    return forward


_Adapter = Callable[[Any, int, Attention], Forward]
#: Architecture -> the class of its attention modules, in the order of the layers, and what replaces their ``forward``.
ADAPTERS: dict[str, tuple[str, _Adapter]] = {
    "BloomForCausalLM": ("BloomAttention", _bloom),
    "FalconForCausalLM": ("FalconAttention", _falcon),
    "GPTNeoForCausalLM": ("GPTNeoSelfAttention", _gpt_neo),
    "MptForCausalLM": ("MptAttention", _mpt),
}

#: Those whose positions are in the biases only, so that their modules take none.
NO_POSITIONS = frozenset({"BloomForCausalLM", "MptForCausalLM"})


def uses(model: Any, attention: Attention | None) -> None:
    """Let every layer of an adapted ``model`` call ``attention``; None: compute its own again."""
    kind, adapter = ADAPTERS[type(model).__name__]
    modules = [module for module in model.modules() if type(module).__name__ == kind]
    for layer, module in enumerate(modules):
        if attention is None:
            module.__dict__.pop("forward", None)
        else:
            module.forward = adapter(module, layer, attention)
