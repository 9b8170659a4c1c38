"""What a model file says about its network, as one frozen record that is checked before any weight is read.

Two sources make it: GGUF metadata and a Hugging Face ``config.json``.  A family is one entry in ``ARCHITECTURES``; what
is not listed there is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError, nearest

#: Families this package runs: the GGUF architecture name -> the class name in ``config.json``.
ARCHITECTURES = {"llama": "LlamaForCausalLM"}
DEFAULT_ROPE_THETA = 10000.0  # the Llama family's documented default


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shape and constants of a Llama network.  Sizes are counts of elements, ``max_positions`` is in tokens.

    ``end_token_ids`` unites the end ids of tokenizer, model and generation configuration.  ``notes`` are remarks for
    the log, for instance a default that was taken because the file is silent.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    tied: bool
    end_token_ids: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def q_size(self) -> int:
        """Outputs of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Outputs of the key (and of the value) projection."""
        return self.num_kv_heads * self.head_dim

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Canonical tensor name (as in Hugging Face folders) -> shape, of every weight the network needs."""
        hidden, ffn = self.hidden_size, self.ffn_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}."
            shapes |= {
                prefix + "input_layernorm.weight": (hidden,),
                prefix + "self_attn.q_proj.weight": (self.q_size, hidden),
                prefix + "self_attn.k_proj.weight": (self.kv_size, hidden),
                prefix + "self_attn.v_proj.weight": (self.kv_size, hidden),
                prefix + "self_attn.o_proj.weight": (hidden, self.q_size),
                prefix + "post_attention_layernorm.weight": (hidden,),
                prefix + "mlp.gate_proj.weight": (ffn, hidden),
                prefix + "mlp.up_proj.weight": (ffn, hidden),
                prefix + "mlp.down_proj.weight": (hidden, ffn),
            }
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes


def _check(config: LlamaConfig, where: str) -> LlamaConfig:
    """Refuse impossible sizes, naming them (H-13).  Raises ConfigError."""
    for key in ("num_layers", "hidden_size", "num_heads", "head_dim", "ffn_size", "vocab_size", "max_positions"):
        if getattr(config, key) < 1:
            raise ConfigError(f"{where}: {key} = {getattr(config, key)}: expected at least 1")
    if config.num_kv_heads < 1 or config.num_heads % config.num_kv_heads:
        raise ConfigError(
            f"{where}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads: "
            "expected a number from 1 that divides the attention heads"
        )
    if config.head_dim % 2:
        raise ConfigError(f"{where}: head_dim = {config.head_dim}: rotary positions need an even number")
    for key in ("norm_eps", "rope_theta"):
        if not getattr(config, key) > 0:
            raise ConfigError(f"{where}: {key} = {getattr(config, key)}: expected more than 0")
    for token in config.end_token_ids:
        if not 0 <= token < config.vocab_size:
            raise ConfigError(f"{where}: end token id {token} is outside the vocabulary of {config.vocab_size}")
    return config


class _Fields:
    """Typed look-ups in a mapping of metadata whose errors name the key and the source."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.where}: key {key!r} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where}: {key} = {value!r}: expected a number")
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if not value.is_integer():
            raise ConfigError(f"{self.where}: {key} = {value}: expected a whole number")
        return int(value)


def _family(name: Any, key: str, known: Iterable[str], where: str) -> None:
    if name not in known:
        raise ConfigError(f"{where}: {key} = {name!r} is not supported{nearest(str(name), known)}")


def from_gguf(fields: Mapping[str, Any], vocab_size: int, tied: bool, name: str, where: str) -> LlamaConfig:
    """GGUF metadata -> LlamaConfig; ``vocab_size`` are the rows of the embedding.  Raises ConfigError."""
    architecture = fields.get("general.architecture")
    _family(architecture, "general.architecture", ARCHITECTURES, where)
    if not vocab_size:
        raise ConfigError(f"{where}: 1 tensor(s) missing: token_embd.weight")
    get = _Fields(fields, where)
    prefix = f"{architecture}."
    if (scaling := fields.get(prefix + "rope.scaling.type")) not in (None, "none"):
        raise ConfigError(f"{where}: {prefix}rope.scaling.type = {scaling!r} is not supported (valid: none)")
    hidden, heads = get.count(prefix + "embedding_length"), get.count(prefix + "attention.head_count")
    head_dim = get.count(prefix + "attention.key_length", hidden // max(heads, 1))
    for key in (prefix + "rope.dimension_count", prefix + "attention.value_length"):
        if get.count(key, head_dim) != head_dim:
            raise ConfigError(f"{where}: {key} = {fields[key]}: only the whole head ({head_dim}) is supported")
    ends = (fields.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom"))
    theta_key = prefix + "rope.freq_base"
    notes = () if theta_key in fields else (f"{theta_key} is missing: {DEFAULT_ROPE_THETA:g} is used",)
    return _check(
        LlamaConfig(
            name=name,
            num_layers=get.count(prefix + "block_count"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=get.count(prefix + "attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn_size=get.count(prefix + "feed_forward_length"),
            vocab_size=vocab_size,
            norm_eps=get.number(prefix + "attention.layer_norm_rms_epsilon"),
            rope_theta=get.number(theta_key, DEFAULT_ROPE_THETA),
            max_positions=get.count(prefix + "context_length"),
            tied=tied,
            end_token_ids=tuple(sorted({int(end) for end in ends if end is not None})),
            notes=notes,
        ),
        where,
    )


#: Switches of ``config.json`` that change the network, and the only value this family runs with.
_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


def from_hf(fields: Mapping[str, Any], end_token_ids: Iterable[int], name: str, where: str) -> LlamaConfig:
    """A Hugging Face ``config.json`` -> LlamaConfig.

    ``end_token_ids`` are those of tokenizer and generation configuration; the model's own are added (D-10).
    Raises ConfigError.
    """
    classes = fields.get("architectures") or [None]
    _family(classes[0], "architectures", ARCHITECTURES.values(), where)
    get = _Fields(fields, where)
    for key, only in _FIXED.items():
        if fields.get(key, only) != only:
            raise ConfigError(f"{where}: {key} = {fields[key]!r} is not supported (valid: {only!r})")
    rope = fields.get("rope_parameters") or {}
    scaling = fields.get("rope_scaling") or rope
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind != "default":
        raise ConfigError(f"{where}: rope scaling {kind!r} is not supported (valid: default)")
    theta = rope.get("rope_theta") or fields.get("rope_theta")
    hidden, heads = get.count("hidden_size"), get.count("num_attention_heads")
    return _check(
        LlamaConfig(
            name=name,
            num_layers=get.count("num_hidden_layers"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=get.count("num_key_value_heads", heads),
            head_dim=get.count("head_dim", hidden // max(heads, 1)),
            ffn_size=get.count("intermediate_size"),
            vocab_size=get.count("vocab_size"),
            norm_eps=get.number("rms_norm_eps", 1e-6),
            rope_theta=_Fields({"rope_theta": theta}, where).number("rope_theta", DEFAULT_ROPE_THETA),
            max_positions=get.count("max_position_embeddings"),
            tied=bool(fields.get("tie_word_embeddings", False)),
            end_token_ids=tuple(sorted({*end_token_ids, *as_ids(fields.get("eos_token_id"))})),
            notes=() if theta else (f"rope_theta is missing: {DEFAULT_ROPE_THETA:g} is used",),
        ),
        where,
    )


def as_ids(value: Any) -> tuple[int, ...]:
    """``eos_token_id`` as files write it (absent, one id, or a list) -> ids."""
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list | tuple) else (int(value),)
