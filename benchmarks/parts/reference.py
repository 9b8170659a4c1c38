"""The embedded model in transformers: what speed and quality are compared with."""

from __future__ import annotations

from typing import Any


def transformers_model(dtype: str) -> Any:
    """A ``LlamaForCausalLM`` with the embedded weights in ``fp32`` or ``bf16``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from mainspring.plugins.models.cache import load_weights
    from mainspring.plugins.models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint("")
    facts = checkpoint.config
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=facts.hidden_size,
            intermediate_size=facts.ffn_size,
            num_hidden_layers=facts.num_layers,
            num_attention_heads=facts.num_heads,
            num_key_value_heads=facts.num_kv_heads,
            head_dim=facts.head_dim,
            vocab_size=facts.vocab_size,
            rms_norm_eps=facts.norm_eps,
            max_position_embeddings=facts.max_positions,
            rope_parameters={"rope_type": "default", "rope_theta": facts.rope.theta},
            tie_word_embeddings=facts.tied,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    read = load_weights(checkpoint, torch.float32, [].append)
    model.load_state_dict({name: read(name) for name in facts.tensor_shapes()}, strict=not facts.tied)
    model = model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).eval()
    model.generation_config.pad_token_id = 0
    return model


def greedy(model: Any, ids: Any, count: int) -> Any:
    """``ids`` ``[rows, tokens]`` and ``count`` more of each."""
    import torch

    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
    )
