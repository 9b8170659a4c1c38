"""The operators an execution backend offers to a model, and what one step looks like to them.

A backend is whatever implements ``Ops``.  Packed weights and the KV pool are opaque: their layout belongs to the
backend, the engine only copies whole blocks.  ``plain_ops`` is the readable reference every other backend is tested
against.  Arrays of a step are int32, in the vocabulary of ``batch.StepBatch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..models.rope import Rope


@dataclass(frozen=True, slots=True)
class KVShape:
    """The KV pool: ``num_blocks`` of ``block_size`` tokens in every layer; memory is taken once.

    ``num_host_blocks`` more, numbered behind them, are only ever copied to and from: preempted requests lie there.
    """

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    num_host_blocks: int = 0

    @property
    def num_all_blocks(self) -> int:
        """Blocks of the pool and of the host."""
        return self.num_blocks + self.num_host_blocks


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention as a backend needs it.  ``windows``: of each layer, in tokens, 0 for none; empty: none anywhere."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: Rope
    windows: tuple[int, ...] = ()

    def window(self, layer: int) -> int:
        """How many tokens, itself included, a token of ``layer`` sees; 0: all."""
        return self.windows[layer] if self.windows else 0


class OpsBatch(Protocol):
    """A step as its backend prepared it; the model only asks whether any row samples."""

    @property
    def logits_rows(self) -> Any | None:
        """Token index of each row that samples, None when there is none."""


class Ops(Protocol):
    """The operators.  ``x`` is ``[num_tokens, width]`` in the activation dtype unless said otherwise.

    Law: a token's result depends on its own sequence only, never on its batch, up to rounding.
    """

    def table(self, weight: torch.Tensor) -> Any:
        """Keep the embedding ``[vocab, hidden]``."""

    def vector(self, weight: torch.Tensor) -> torch.Tensor:
        """Keep a norm's weight ``[hidden]``."""

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        """Keep a matrix ``[outputs, inputs]`` (and ``[outputs]``) as ``linear`` wants it; the source may be freed."""

    def embed(self, table: Any, batch: Any) -> torch.Tensor:
        """Rows of the table for the batch's ids."""

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``(norm(x + residual), x + residual)``; without a residual ``(norm(x), x)``.  May overwrite ``residual``."""

    def linear(self, x: torch.Tensor, weight: Any) -> torch.Tensor:
        """``x @ weight.T``, plus the bias if it was packed with one."""

    def norm_heads(self, qkv: torch.Tensor, query: torch.Tensor, key: torch.Tensor, eps: float) -> torch.Tensor:
        """Root-mean-square norm of each query and each key head over its ``head_dim``.  May overwrite ``qkv``."""

    def rope_and_write(self, qkv: torch.Tensor, layer: int, batch: Any) -> torch.Tensor:
        """Rotate query and key heads by position, write keys and values to their slots (slot -1: nowhere).

        Returns the queries ``[num_tokens, num_heads, head_dim]``.  May overwrite ``qkv``.
        """

    def attention(self, q: torch.Tensor, layer: int, batch: Any) -> torch.Tensor:
        """Causal attention of each token over its own sequence in the pool, or over what the layer's window leaves of
        it: ``[num_tokens, num_heads * head_dim]``."""

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """``silu(first half) * second half``: ``[num_tokens, width / 2]``."""

    def select(self, x: torch.Tensor, batch: Any) -> torch.Tensor:
        """The rows of ``x`` that sample, in row order."""

    def logits(self, x: torch.Tensor, head: Any) -> torch.Tensor:
        """``x @ head.T`` as float32 ``[rows, vocab]``; the caller owns the result."""

    def prepare(self, batch: Any) -> OpsBatch:
        """Bring a ``batch.StepBatch`` to the device, with whatever the layers share (masks, rotations)."""

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Copy whole blocks ``(source, target)`` in every layer, in this order."""

    def weight_bytes(self) -> int:
        """Bytes kept by ``table``, ``vector`` and ``pack`` so far."""
