"""The Llama network and its relatives as one frozen record that is checked before any weight is read.

Two sources make it: GGUF metadata (``config_gguf``) and a Hugging Face ``config.json`` (``config_hf``).  A family is
one entry in ``FAMILIES``: what it adds to Llama, and its documented defaults where files may be silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError, nearest
from .rope import Rope, check_rope

MOST_LAYERS = 10_000  # tensors are looked for layer by layer: a damaged count must not take all memory


@dataclass(frozen=True, slots=True)
class Family:
    """``gguf``: its architecture name there.  ``qkv_bias``, ``out_bias`` None: the file's ``attention_bias`` says.

    ``head_dim`` 0: hidden size / heads.  ``window``: its sliding window where the file is silent, None: it has none.
    ``layered_window``: only some layers have the window, and only if ``use_sliding_window``.
    """

    gguf: str
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = False
    qk_norm: bool = False
    head_dim: int = 0
    window: int | None = None
    layered_window: bool = False


#: Class name in ``config.json`` -> what it is.
FAMILIES = {
    "LlamaForCausalLM": Family("llama", mlp_bias=None),
    "MistralForCausalLM": Family("llama", qkv_bias=False, out_bias=False, window=4096),
    "Qwen2ForCausalLM": Family("qwen2", qkv_bias=True, out_bias=False, window=4096, layered_window=True),
    "Qwen3ForCausalLM": Family("qwen3", qk_norm=True, head_dim=128, window=4096, layered_window=True),
}


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shape and constants of a network.  Sizes are counts of elements, ``max_positions`` is in tokens.

    ``most_positions`` may be asked for explicitly, ``max_positions`` is the limit otherwise.  ``windows`` has one
    entry per layer: a token sees so many tokens, itself included; 0: all; empty: all in every layer.
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
    rope: Rope
    max_positions: int
    tied: bool
    most_positions: int = 0
    windows: tuple[int, ...] = ()
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
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
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.num_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes["model.norm.weight"] = (hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, ffn = self.hidden_size, self.ffn_size
        matrices = {
            "self_attn.q_proj": (self.q_size, hidden, self.qkv_bias),
            "self_attn.k_proj": (self.kv_size, hidden, self.qkv_bias),
            "self_attn.v_proj": (self.kv_size, hidden, self.qkv_bias),
            "self_attn.o_proj": (hidden, self.q_size, self.out_bias),
            "mlp.gate_proj": (ffn, hidden, self.mlp_bias),
            "mlp.up_proj": (ffn, hidden, self.mlp_bias),
            "mlp.down_proj": (hidden, ffn, self.mlp_bias),
        }
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        for name, (outputs, inputs, biased) in matrices.items():
            shapes[name + ".weight"] = (outputs, inputs)
            if biased:
                shapes[name + ".bias"] = (outputs,)
        if self.qk_norm:
            shapes |= {f"self_attn.{part}_norm.weight": (self.head_dim,) for part in "qk"}
        shapes["post_attention_layernorm.weight"] = (hidden,)
        return shapes


def check_config(config: LlamaConfig, where: str) -> LlamaConfig:
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
    if not config.norm_eps > 0:
        raise ConfigError(f"{where}: norm_eps = {config.norm_eps}: expected more than 0")
    check_rope(config.rope, where)
    for window in config.windows:
        if window < 0:
            raise ConfigError(f"{where}: sliding_window = {window}: expected at least 1")
    for token in config.end_token_ids:
        if not 0 <= token < config.vocab_size:
            raise ConfigError(f"{where}: end token id {token} is outside the vocabulary of {config.vocab_size}")
    return config


def check_known(name: Any, key: str, known: Iterable[str], where: str) -> None:
    """``name`` is one of ``known``.  Raises ConfigError with the nearest."""
    known = list(known)
    if name not in known:
        raise ConfigError(f"{where}: {key} = {name!r} is not supported{nearest(str(name), known)}")


def as_ids(value: Any, where: str) -> tuple[int, ...]:
    """``eos_token_id`` as files write it (absent, one id, or a list) -> ids.  Raises ConfigError."""
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list | tuple) else (value,)
    if any(type(token) is not int for token in ids):
        raise ConfigError(f"{where}: eos_token_id = {value!r}: expected an id or a list of ids")
    return ids


def check_unquantised(fields: Mapping[str, Any], where: str) -> None:
    """Weights that only a quantiser's own code can read are refused by its name.  Raises ConfigError."""
    if (found := fields.get("quantization_config")) is not None:
        method = found.get("quant_method") if isinstance(found, Mapping) else found
        raise ConfigError(f"{where}: quantization_config.quant_method = {method!r} is not supported (valid: none)")
