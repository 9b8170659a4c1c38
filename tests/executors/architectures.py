"""A tiny random model of any decoder that transformers knows, made by shrinking its default configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

#: Every key that makes a model smaller, whatever its family calls it.
TINY: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 64, "n_embd": 64, "d_model": 64, "dim": 64, "embedding_size": 64,
    "intermediate_size": 96, "ffn_dim": 96, "n_inner": 96, "decoder_ffn_dim": 96, "ffn_hidden_size": 96, "d_ff": 96,
    "num_hidden_layers": 2, "n_layer": 2, "num_layers": 2, "decoder_layers": 2, "n_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "num_heads": 4, "n_heads": 4, "decoder_attention_heads": 4,
    "encoder_layers": 2,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "n_positions": 128,
    "max_seq_len": 128, "n_ctx": 128, "seq_length": 128, "max_sequence_length": 128, "sliding_window": 8,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_k": 2, "moe_intermediate_size": 32, "moe_ffn_hidden_size": 32, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "num_shared_experts": 1, "n_shared_experts": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "qk_head_dim": 16, "n_group": 1, "topk_group": 1,
    "rotary_dim": 8, "word_embed_proj_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "first_k_dense_replace": 1, "max_window_layers": 1, "attention_window_size": 8, "window_size": 8,
    "dim_ff": 96, "type_vocab_size": 2, "lru_width": 64, "state_size": 8, "mamba_d_state": 8, "mamba_n_heads": 4,
    "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_expand": 2, "num_global_key_value_heads": 2, "global_head_dim": 16,
    "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16,
}  # fmt: skip
#: Taken even where the default configuration leaves them open.
OPEN = {"head_dim", "num_key_value_heads", "num_experts_per_tok"}
#: What does not follow from the tables.
OVERRIDES: dict[str, dict[str, Any]] = {
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]], "intermediate_size": 96},
    "BloomForCausalLM": {"seq_length": 128},
    "PLBartForCausalLM": {"encoder_attention_heads": 4},
    "XmodForCausalLM": {"default_language": "en_XX"},
    "ZayaForCausalLM": {"num_experts_per_tok": 1},
    "DeepseekV2ForCausalLM": {"topk_method": "greedy"},
}


#: Architectures that run, and answer as they do by themselves.
RUN = (
    "AXK1ForCausalLM", "AfmoeForCausalLM", "Apertus1p5TextForCausalLM", "ApertusForCausalLM", "ArceeForCausalLM",
    "AriaTextForCausalLM", "BeamForCausalLM", "BertGenerationDecoder", "BertLMHeadModel", "BioGptForCausalLM",
    "BitNetForCausalLM", "BloomForCausalLM", "CTRLLMHeadModel", "CodeGenForCausalLM", "Cohere2ForCausalLM",
    "Cohere2MoeForCausalLM", "CohereForCausalLM", "CwmForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
    "ElectraForCausalLM", "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM", "ErnieForCausalLM", "Exaone4ForCausalLM",
    "ExaoneMoeForCausalLM", "FalconForCausalLM", "FlexOlmoForCausalLM", "FlintForCausalLM", "GPT2LMHeadModel",
    "GPTBigCodeForCausalLM", "GPTJForCausalLM", "GPTNeoForCausalLM", "GPTNeoXForCausalLM", "Gemma2ForCausalLM",
    "Gemma3ForCausalLM", "GemmaForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM",
    "GlmForCausalLM", "GptOssForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSWAForCausalLM",
    "GraniteMoeSharedForCausalLM", "GraniteSWAForCausalLM", "HYV3ForCausalLM", "HeliumForCausalLM",
    "HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM", "HyperCLOVAXForCausalLM", "Jais2ForCausalLM",
    "JetMoeForCausalLM", "Kolibri1ForCausalLM", "LagunaForCausalLM", "Lfm2ForCausalLM", "LongcatFlashForCausalLM",
    "MellumForCausalLM", "MiMoV2FlashForCausalLM", "MiniCPM3ForCausalLM", "MiniMaxM2ForCausalLM",
    "MiniMaxM3VLForCausalLM", "Ministral3ForCausalLM", "MinistralForCausalLM", "MixtralForCausalLM",
    "ModernBertDecoderForCausalLM", "MptForCausalLM", "NanoChatForCausalLM", "NemotronForCausalLM", "OPTForCausalLM",
    "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM", "OlmoeForCausalLM", "PersimmonForCausalLM",
    "Phi3ForCausalLM", "PhiForCausalLM", "PhimoeForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM",
    "RoCBertForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM", "SolarOpenForCausalLM", "StableLmForCausalLM",
    "Starcoder2ForCausalLM", "VaultGemmaForCausalLM", "YoutuForCausalLM",
)  # fmt: skip
#: Words of the refusal -> architectures that are refused so at load.
_REFUSALS = {
    "layers of type 'indexed_attention'": (
        "AXK2ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "HYV4ForCausalLM",
    ),
    "layers of type 'linear_attention'": (
        "BailingHybridForCausalLM", "BambaForCausalLM", "FalconMambaForCausalLM", "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM", "KimiLinearForCausalLM", "LaraMiniForCausalLM", "MambaForCausalLM", "MiniMaxForCausalLM",
        "NemotronHForCausalLM", "OlmoHybridForCausalLM", "Qwen3NextForCausalLM", "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM", "Qwen4ExpForCausalLM", "RecurrentGemmaForCausalLM",
    ),
    "does not take positions": (
        "BartForCausalLM", "BigBirdPegasusForCausalLM", "BlenderbotForCausalLM", "BlenderbotSmallForCausalLM",
        "MBartForCausalLM", "MarianForCausalLM", "MusicgenForCausalLM", "MusicgenMelodyForCausalLM",
        "PegasusForCausalLM", "xLSTMForCausalLM",
    ),
    "computes its attention itself": (
        "BigBirdForCausalLM", "CpmAntForCausalLM", "GPTNeoXJapaneseForCausalLM", "MegatronBertForCausalLM",
        "MvpForCausalLM", "OpenAIGPTLMHeadModel", "ProphetNetForCausalLM", "RemBertForCausalLM",
        "RoFormerForCausalLM", "RwkvForCausalLM", "TrOCRForCausalLM", "XGLMForCausalLM", "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    ),
    "standard deviations off": (
        "CamembertForCausalLM", "Data2VecTextForCausalLM", "RobertaForCausalLM", "RobertaPreLayerNormForCausalLM",
        "XLMRobertaForCausalLM", "XLMRobertaXLForCausalLM", "XmodForCausalLM",
    ),
    "layers of type 'heavily_compressed_attention'": (
        "DeepseekV4ForCausalLM",
    ),
    "two attentions call themselves layer 0": (
        "DiffLlamaForCausalLM", "DoryForCausalLM", "HrmTextForCausalLM",
    ),
    "attention with a mask of its own": (
        "DogeForCausalLM",
    ),
    "transformers cannot load": (
        "GitForCausalLM",
    ),
    "layers of type 'hybrid_sliding'": (
        "InklingForCausalLM",
    ),
    "layers of type 'conv'": (
        "Lfm3ForCausalLM",
    ),
    "layers of type 'chunked_attention'": (
        "Llama4ForCausalLM",
    ),
    "does not tell attention how long it is": (
        "MoshiForCausalLM",
    ),
    "layers of type 'hybrid'": (
        "ZayaForCausalLM",
    ),
}  # fmt: skip
#: Architecture -> words of its refusal.
REFUSED = {name: words for words, names in _REFUSALS.items() for name in names}


def architectures() -> dict[str, str]:
    """Class name of every causal decoder in the installed transformers -> its model type."""
    found: dict[str, str] = {}
    for kind, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        for name in (names,) if isinstance(names, str) else names:
            found.setdefault(name, kind)
    return found


def tiny_config(name: str) -> Any:
    """The default configuration of a class with every size in it shrunk."""
    kind = transformers.AutoConfig.for_model(architectures()[name]).__class__
    default = kind()
    text = default.get_text_config(decoder=True)
    kind = text.__class__
    names = {**{key: key for key in vars(text)}, **getattr(kind, "attribute_map", {})}
    stated = {key for key in TINY if key in names and (getattr(text, key, None) is not None or key in OPEN)}
    sizes = {key: TINY[key] for key in stated if names[key] == key or names[key] not in stated}
    if "qk_rope_head_dim" in names:  # keys are kept compressed: there it is another name for the part that turns
        sizes = {**sizes, "num_key_value_heads": 4, "head_dim": 8}
    if "is_decoder" in names:
        sizes["is_decoder"] = True
    return kind(**(sizes | OVERRIDES.get(name, {})))


def write_tiny(folder: Path, name: str) -> Any:
    """A random tiny model of class ``name`` in ``folder``; returns it."""
    config = tiny_config(name)
    torch.manual_seed(3)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return model
