"""Decoders that transformers runs with the engine's paged attention inside, tiny and random, in float32 (H-06)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import transformers
from tests.executors.reference import engine_config, greedy_ids, reference, simulated, whole_logits

from mainspring.plugins.executors.torch import TorchExecutor

NEW_TOKENS = 32
SHARED = Random(9).choices(range(128), k=20)
PROMPTS = [[5, 6, 7], Random(1).choices(range(128), k=8), [*SHARED, 3], [*SHARED, 4, 5]]
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA = SIZES | {"num_key_value_heads": 2}
#: Configuration class, and what tells two of the same apart -> its arguments.  Windows of 8 tokens are shorter than the
#: longer prompts.
MODELS: dict[str, dict[str, Any]] = {
    "BloomConfig": {
        "vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4, "seq_length": 128, "pad_token_id": 0,
    },
    "CohereConfig": GQA,
    "DeepseekV3Config": SIZES
    | {
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1,
    },
    "FalconConfig": SIZES | {"multi_query": True, "parallel_attn": True, "bias": True},
    "FalconConfig alibi": SIZES
    | {"alibi": True, "multi_query": False, "parallel_attn": False, "num_attention_heads": 6, "hidden_size": 96},
    "FalconConfig groups": SIZES | {"new_decoder_architecture": True, "num_kv_heads": 2},
    "GPT2Config": {
        "vocab_size": 128, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "GPTNeoConfig": {
        "vocab_size": 128, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "window_size": 8, "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "GPTNeoXConfig": SIZES,
    "GPTJConfig": {
        "vocab_size": 128, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8,
        "bos_token_id": 1, "eos_token_id": 2,
    },
    "Gemma2Config": GQA
    | {"head_dim": 32, "sliding_window": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
    "Gemma3TextConfig": GQA
    | {"head_dim": 32, "sliding_window": 8, "num_hidden_layers": 3, "sliding_window_pattern": 2},
    "GemmaConfig": GQA | {"head_dim": 32},
    "GptOssConfig": GQA
    | {
        "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 32.0,
                            "beta_slow": 1.0, "original_max_position_embeddings": 32, "truncate": False},
    },
    "GraniteConfig": GQA | {"attention_multiplier": 0.2, "residual_multiplier": 0.7},
    "HeliumConfig": GQA | {"head_dim": 16},
    "MixtralConfig": GQA | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "MptConfig": {
        "vocab_size": 128, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, "expansion_ratio": 2,
    },
    "OPTConfig": {
        "vocab_size": 128, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 128, "word_embed_proj_dim": 64, "pad_token_id": 0,
    },
    "Olmo2Config": GQA,
    "OlmoConfig": GQA,
    "Phi3Config": GQA | {"sliding_window": 8},
    "PhiConfig": GQA,
    "StableLmConfig": GQA,
    "Starcoder2Config": GQA | {"sliding_window": 8},
}  # fmt: skip


def write(folder: Path, name: str, **overrides: Any) -> None:
    """A model with weights large enough that attention, window and soft-cap matter."""
    config = getattr(transformers, name.split(maxsplit=1)[0])(**(MODELS[name] | overrides))
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter.shape[-1] ** 0.5)
            elif "sinks" in key:
                parameter.normal_(0, 2)
    model.save_pretrained(folder)


#: Tried with every change, for what sets them apart: biases, sinks, windows, soft-caps, compressed keys, shared heads.
ALWAYS = (
    "BloomConfig", "CohereConfig", "DeepseekV3Config", "FalconConfig", "FalconConfig alibi", "GPT2Config",
    "GPTNeoConfig", "Gemma2Config", "GptOssConfig", "MptConfig", "Olmo2Config", "Phi3Config", "Starcoder2Config",
)  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.soak]) for name in MODELS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    write(folder := tmp_path_factory.mktemp(request.param.replace(" ", "-")), request.param)
    # The explicit attention of Falcon in transformers 5.24 adds the biases twice.
    return folder, reference(folder, "sdpa" if request.param == "FalconConfig alibi" else "eager")


def test_logits_greedy_ids_and_preemption(start: Any, model: tuple[Path, Any]) -> None:
    """Mixed batches in chunks; then a whole engine with too small a pool, with and without a prefix cache."""
    folder, own = model
    expected = [greedy_ids(own, prompt, NEW_TOKENS) for prompt in PROMPTS]
    driver = start(folder, num_blocks=256)
    assert driver.generate(PROMPTS, NEW_TOKENS, chunk=5, stagger=1) == expected
    for use in ("paged", "prefix"):
        config = engine_config(folder, 24, use)
        sim, made = simulated(executor := TorchExecutor(None, config), config, PROMPTS, NEW_TOKENS)
        executor.close()
        finishes = [row.finish for emit in sim.emitted for row in emit.rows if row.finish]
        assert made == expected
        assert sum(finish.num_preemptions for finish in finishes) > 0
        assert use == "paged" or sum(finish.usage.cached for finish in finishes) > 0


def test_every_position_of_a_long_prompt_h06(start: Any, model: tuple[Path, Any]) -> None:
    folder, own = model
    ids = Random(4).choices(range(128), k=40)
    whole = whole_logits(own, ids)
    for chunk in (1, 6, 40):
        driver = start(folder)
        for at in range(0, len(ids), chunk):
            driver.run(driver.row("a", at, ids[at : at + chunk], True))
        last = [min(at + chunk, len(ids)) - 1 for at in range(0, len(ids), chunk)]
        torch.testing.assert_close(torch.cat(driver.logits), whole[last], rtol=1e-3, atol=1e-4)
