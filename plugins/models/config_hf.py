"""A Hugging Face ``config.json`` -> LlamaConfig, for the families of this package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...core.errors import ConfigError
from .config import (
    FAMILIES,
    MOST_LAYERS,
    Family,
    LlamaConfig,
    as_ids,
    check_config,
    check_known,
    check_unquantised,
)
from .fields import Fields
from .rope import position_limits, read_rope

#: Switches that change the network, and the only value these families run with.
_FIXED = {"hidden_act": "silu"}
#: What a layer may be called in ``layer_types`` -> whether it has the sliding window.
_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def from_hf(fields: Mapping[str, Any], end_token_ids: Iterable[int], name: str, where: str) -> LlamaConfig:
    """``end_token_ids`` are those of tokenizer and generation configuration; the model's own are added (D-10).

    Raises ConfigError naming the key.
    """
    classes = fields.get("architectures") or [None]
    check_known(classes[0], "architectures", FAMILIES, where)
    family = FAMILIES[classes[0]]
    check_unquantised(fields, where)
    get = Fields(fields, where)
    for key, only in _FIXED.items():
        if fields.get(key, only) != only:
            raise ConfigError(f"{where}: {key} = {fields[key]!r} is not supported (valid: {only!r})")
    stated = get.count("max_position_embeddings")
    rope, notes = read_rope(fields, stated, where)
    max_positions, most_positions = position_limits(rope, stated)
    hidden, heads = get.count("hidden_size"), get.count("num_attention_heads")
    layers = get.count("num_hidden_layers", most=MOST_LAYERS)
    windows, more = _windows(get, family, layers)
    bias = get.flag("attention_bias", False)
    head_dim = get.count("head_dim", family.head_dim or hidden // max(heads, 1))
    if family.head_dim and fields.get("head_dim") is None:
        more = (*more, f"head_dim is missing: {head_dim} is used")
    return check_config(
        LlamaConfig(
            name=name,
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=get.count("num_key_value_heads", heads),
            head_dim=head_dim,
            ffn_size=get.count("intermediate_size"),
            vocab_size=get.count("vocab_size"),
            norm_eps=get.number("rms_norm_eps", 1e-6),
            rope=rope,
            max_positions=max_positions,
            most_positions=most_positions,
            tied=get.flag("tie_word_embeddings", False),
            windows=windows,
            qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
            out_bias=bias if family.out_bias is None else family.out_bias,
            mlp_bias=get.flag("mlp_bias", False) if family.mlp_bias is None else family.mlp_bias,
            qk_norm=family.qk_norm,
            end_token_ids=tuple(sorted({*end_token_ids, *as_ids(fields.get("eos_token_id"), where)})),
            notes=(*notes, *more),
        ),
        where,
    )


def _windows(get: Fields, family: Family, num_layers: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The window of every layer (H-06), and notes."""
    kinds = get.values.get("layer_types")
    if kinds is not None:
        for kind in kinds:
            check_known(kind, "layer_types", _LAYER_TYPES, get.where)
        if len(kinds) != num_layers:
            raise ConfigError(f"{get.where}: layer_types has {len(kinds)} entries for {num_layers} layers")
    sliding = [_LAYER_TYPES[kind] for kind in kinds] if kinds is not None else None
    if family.window is None or (family.layered_window and not get.flag("use_sliding_window", False)):
        if sliding and any(sliding):
            raise ConfigError(f"{get.where}: layer_types names sliding layers, and no sliding_window is in use")
        return (), ()
    if "sliding_window" in get.values and get.values["sliding_window"] is None:
        return (), ()
    window = get.count("sliding_window", family.window)
    if window < 1:
        raise ConfigError(f"{get.where}: sliding_window = {window}: expected at least 1")
    notes = () if "sliding_window" in get.values else (f"sliding_window is missing: {window} is used",)
    if sliding is None and family.layered_window:
        first = get.count("max_window_layers", 28)
        sliding = [layer >= first for layer in range(num_layers)]
    if sliding is None:
        sliding = [True] * num_layers
    return tuple(window if slides else 0 for slides in sliding), notes
