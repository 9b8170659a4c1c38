"""GGUF metadata -> LlamaConfig, for the families of this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ...core.errors import ConfigError
from .config import FAMILIES, MOST_LAYERS, LlamaConfig, check_config, check_known
from .fields import Fields
from .rope import DEFAULT_THETA, Rope, position_limits, yarn_attention

ARCHITECTURES = sorted({family.gguf for family in FAMILIES.values()})
SCALINGS = ("none", "linear", "yarn")
_SCALING_KEYS = (
    "type", "factor", "original_context_length", "finetuned", "attn_factor", "yarn_beta_fast", "yarn_beta_slow",
)  # fmt: skip
_QKV = "model.layers.0.self_attn.q_proj.bias"
_OUT = "model.layers.0.self_attn.o_proj.bias"
_MLP = "model.layers.0.mlp.up_proj.bias"
_NORM = "model.layers.0.self_attn.q_norm.weight"


def check_architecture(fields: Mapping[str, Any], where: str) -> str:
    """The file's architecture, if it is one of ours (H-08).  Raises ConfigError."""
    name = fields.get("general.architecture")
    check_known(name, "general.architecture", ARCHITECTURES, where)
    return str(name)


def from_gguf(
    fields: Mapping[str, Any],
    vocab_size: int,
    names: Collection[str],
    name: str,
    where: str,
    divisors: tuple[float, ...] = (),
) -> LlamaConfig:
    """``vocab_size`` are the rows of the embedding; ``names`` the file's tensors by canonical name: whether there are
    biases, norms of query and key, or an output matrix is what the file holds (H-10).  ``divisors`` of the rotary
    frequencies, if it holds some.  Raises ConfigError."""
    prefix = check_architecture(fields, where) + "."
    if not vocab_size:
        raise ConfigError(f"{where}: 1 tensor(s) missing: token_embd.weight")
    get = Fields(fields, where)
    hidden, heads = get.count(prefix + "embedding_length"), get.count(prefix + "attention.head_count")
    layers = get.count(prefix + "block_count", most=MOST_LAYERS)
    head_dim = get.count(prefix + "attention.key_length", hidden // max(heads, 1))
    for key in (prefix + "rope.dimension_count", prefix + "attention.value_length"):
        if get.count(key, head_dim) != head_dim:
            raise ConfigError(f"{where}: {key} = {fields[key]}: only the whole head ({head_dim}) is supported")
    stated = get.count(prefix + "context_length")
    rope = _rope(get, prefix + "rope.", stated, divisors)
    max_positions, most_positions = position_limits(rope, stated)
    ends = (fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    theta_key = prefix + "rope.freq_base"
    return check_config(
        LlamaConfig(
            name=name,
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=get.count(prefix + "attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn_size=get.count(prefix + "feed_forward_length"),
            vocab_size=vocab_size,
            norm_eps=get.number(prefix + "attention.layer_norm_rms_epsilon"),
            rope=rope,
            max_positions=max_positions,
            most_positions=most_positions,
            tied="lm_head.weight" not in names,
            windows=_windows(get, prefix, layers),
            qkv_bias=_QKV in names,
            out_bias=_OUT in names,
            mlp_bias=_MLP in names,
            qk_norm=prefix == "qwen3." or _NORM in names,
            end_token_ids=tuple(sorted({int(end) for end in ends if end is not None})),
            notes=() if theta_key in fields else (f"{theta_key} is missing: {DEFAULT_THETA:g} is used",),
        ),
        where,
    )


def _windows(get: Fields, prefix: str, layers: int) -> tuple[int, ...]:
    """One window for all layers where the file states one; a pattern of layers is refused (H-06)."""
    key = prefix + "attention.sliding_window"
    if (pattern := get.values.get(key + "_pattern")) is not None:
        raise ConfigError(f"{get.where}: {key}_pattern = {pattern!r} is not supported")
    window = get.count(key, 0)
    return (window,) * layers if window else ()


def _rope(get: Fields, prefix: str, stated: int, divisors: tuple[float, ...]) -> Rope:
    """``stated``: context_length of the file."""
    theta = get.number(prefix + "freq_base", DEFAULT_THETA)
    kind = get.values.get(prefix + "scaling.type") or "none"
    check_known(kind, prefix + "scaling.type", SCALINGS, get.where)
    for key in get.values:
        if key.startswith(prefix + "scaling."):
            check_known(key.removeprefix(prefix + "scaling."), "key " + key, _SCALING_KEYS, get.where)
    if kind == "none":
        return Rope(theta, divisors=divisors)
    if divisors:
        raise ConfigError(f"{get.where}: rope_freqs.weight together with {prefix}scaling.type = {kind!r}")
    factor = get.number(prefix + "scaling.factor")
    if kind == "linear":
        return Rope(theta, kind, factor, stated)
    return Rope(
        theta,
        kind,
        factor,
        get.count(prefix + "scaling.original_context_length", stated),
        beta_fast=get.number(prefix + "scaling.yarn_beta_fast", 32.0),
        beta_slow=get.number(prefix + "scaling.yarn_beta_slow", 1.0),
        attention_factor=yarn_attention(factor) * get.number(prefix + "scaling.attn_factor", 1.0),
    )
