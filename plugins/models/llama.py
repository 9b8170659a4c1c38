"""The Llama network and its relatives on flattened tokens ``[num_tokens, hidden]``, over a backend's operators.

Every sequence of a step lies behind the other in one long row of tokens; only attention knows where one ends.  Query,
key and value projections are one matrix, gate and up projections are another, and the vocabulary is only multiplied
for the rows that sample.  What a relative adds (biases, norms of query and key, windows) is there if its
configuration says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...core.errors import ConfigError
from .blocks import Matrix, Stacked
from .config import LlamaConfig

if TYPE_CHECKING:
    from ..executors.ops import Ops, OpsBatch
    from .checkpoint import Checkpoint

#: Sees named intermediate results: ``hidden``, ``qkv``, ``q``, ``k``, ``v``, ``scores``, ``gate``, ``up``, ``logits``.
Trace = Callable[[str, torch.Tensor], None]
#: A tensor by canonical name; for backends that take them, matrices may come as ``blocks.BlockMatrix``.
Read = Callable[[str], Any]


class Layer(NamedTuple):
    """One layer's weights; the matrices are packed by the backend and opaque here."""

    input_norm: torch.Tensor
    qkv: Any
    head_norms: tuple[torch.Tensor, torch.Tensor] | None
    output: Any
    ffn_norm: torch.Tensor
    gate_up: Any
    down: Any


class Llama:
    """The network with its weights packed for ``ops``.  ``forward`` is the only thing it does."""

    def __init__(self, config: LlamaConfig, read: Read, ops: Ops, trace: Trace | None = None) -> None:
        """``read`` gives a weight by canonical name; each is read once and packed, so the peak stays near the sum."""
        self.config, self.ops, self.trace = config, ops, trace
        self.layers = [self._layer(f"model.layers.{index}.", read) for index in range(config.num_layers)]
        embedding = read("model.embed_tokens.weight")
        self.embedding = ops.table(embedding)
        self.norm = ops.vector(read("model.norm.weight"))
        self.head = ops.pack(embedding if config.tied else read("lm_head.weight"))

    def _layer(self, prefix: str, read: Read) -> Layer:
        ops, model = self.ops, self.config

        def packed(names: tuple[str, ...], biased: bool) -> Any:
            bias = joined([read(f"{prefix}{name}_proj.bias") for name in names]) if biased else None
            return ops.pack(stacked([read(f"{prefix}{name}_proj.weight") for name in names]), bias)

        norms = [ops.vector(read(f"{prefix}self_attn.{part}_norm.weight")) for part in "qk" if model.qk_norm]
        return Layer(
            input_norm=ops.vector(read(prefix + "input_layernorm.weight")),
            qkv=packed(("self_attn.q", "self_attn.k", "self_attn.v"), model.qkv_bias),
            head_norms=(norms[0], norms[1]) if norms else None,
            output=packed(("self_attn.o",), model.out_bias),
            ffn_norm=ops.vector(read(prefix + "post_attention_layernorm.weight")),
            gate_up=packed(("mlp.gate", "mlp.up"), model.mlp_bias),
            down=packed(("mlp.down",), model.mlp_bias),
        )

    def forward(self, batch: OpsBatch) -> torch.Tensor | None:
        """One step: writes the batch's keys and values to the pool, returns float32 logits ``[rows, vocab]`` of the
        rows that sample, in batch order, or None when none does."""
        ops, eps = self.ops, self.config.norm_eps
        x = ops.embed(self.embedding, batch)
        self._see("hidden", x)
        residual = None
        for index, layer in enumerate(self.layers):
            x, residual = ops.rms_norm(x, layer.input_norm, eps, residual)
            qkv = ops.linear(x, layer.qkv)
            self._see("qkv", qkv)
            if layer.head_norms:
                qkv = ops.norm_heads(qkv, *layer.head_norms, eps)
            q = ops.rope_and_write(qkv, index, batch)
            x = ops.linear(ops.attention(q, index, batch), layer.output)
            x, residual = ops.rms_norm(x, layer.ffn_norm, eps, residual)
            gate_up = ops.linear(x, layer.gate_up)
            if self.trace:
                for name, half in zip(("gate", "up"), gate_up.chunk(2, dim=-1), strict=True):
                    self._see(name, half)
            x = ops.linear(ops.silu_mul(gate_up), layer.down)
        if batch.logits_rows is None:
            return None
        x, residual = ops.select(x, batch), ops.select(residual, batch) if residual is not None else None
        x, _ = ops.rms_norm(x, self.norm, eps, residual)
        logits = ops.logits(x, self.head)
        self._see("logits", logits)
        return logits

    def _see(self, name: str, value: torch.Tensor) -> None:
        if self.trace:
            self.trace(name, value)


def stacked(parts: list[Matrix]) -> Any:
    """One matrix with the outputs of all ``parts``, in order: a tensor of numbers; blocks stay apart, for the backend
    that asked for them."""
    numbers = [part for part in parts if isinstance(part, torch.Tensor)]
    if len(numbers) == len(parts):
        return joined(numbers)
    return parts[0] if len(parts) == 1 else Stacked(parts)


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """The rows of all ``parts``; no copy where each lies behind the one before it, as in the cache of weights."""
    first = parts[0]
    memory, end = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        if part.untyped_storage().data_ptr() != memory or part.storage_offset() != end or not part.is_contiguous():
            return torch.cat(parts)
        end += part.numel()
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def check_repeated_head(checkpoint: Checkpoint) -> None:
    """A tied model whose file repeats the output weights must repeat them exactly (H-01).  Raises ConfigError."""
    if not checkpoint.config.tied or "lm_head.weight" not in checkpoint.names:
        return
    if not torch.equal(checkpoint.read("lm_head.weight"), checkpoint.read("model.embed_tokens.weight")):
        raise ConfigError(f"{checkpoint.path}: the weights are tied, yet lm_head.weight differs from the embedding")
