"""The reference backend: every operator in the most readable torch, one sequence at a time, with explicit scores.

It is what the other backends are compared with, and it runs on the ``meta`` device too, where shapes are computed and
nothing is stored.  Slow by design.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from ..models.llama import Trace
from ..models.rope import Rotary
from .batch import StepBatch
from .dtypes import SCALE, quantise
from .ops import HeadShape, KVShape


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """A step on the device.  ``rows`` are (first token, token count, context length, slots of the context)."""

    ids: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    slots: torch.Tensor
    rows: tuple[tuple[int, int, int, torch.Tensor], ...]
    logits_rows: torch.Tensor | None


class PlainMatrix(NamedTuple):
    """A matrix as it is."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class PlainOps:
    """Implements ``Ops``; see there for each operator's contract."""

    def __init__(
        self,
        heads: HeadShape,
        kv: KVShape,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        trace: Trace | None = None,
    ) -> None:
        self.heads, self.kv_shape, self.dtype, self.device, self.trace = heads, kv, dtype, device, trace
        pool = (kv.num_layers, kv.num_all_blocks * kv.block_size, kv.num_kv_heads, kv.head_dim)
        self.keys = torch.zeros(pool, dtype=kv_dtype, device=device)
        self.values = torch.zeros(pool, dtype=kv_dtype, device=device)
        self.scales = [torch.zeros(pool[:-1], dtype=SCALE, device=device) for _ in "kv"[: 2 * (kv_dtype == torch.int8)]]
        self.rotary = Rotary(heads.rope, heads.head_dim)
        self._weight_bytes = 0

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def table(self, weight: torch.Tensor) -> torch.Tensor:
        kept = weight.to(self.device, self.dtype)
        self._weight_bytes += kept.nbytes
        return kept

    vector = table

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PlainMatrix:
        return PlainMatrix(self.table(weight), None if bias is None else self.table(bias))

    def prepare(self, batch: StepBatch) -> PlainBatch:
        size = self.kv_shape.block_size
        cos, sin = self.rotary.cos_sin(batch.positions)
        rows = []
        for row in range(len(batch.context_lens)):
            first, after, length = int(batch.cu_seqlens[row]), int(batch.cu_seqlens[row + 1]), batch.context_lens[row]
            table = torch.from_numpy(batch.block_tables[row]).long()
            slots = (table[:, None] * size + torch.arange(size)).flatten()[: int(length)]
            rows.append((first, after - first, int(length), slots.to(self.device)))
        return PlainBatch(
            ids=torch.from_numpy(batch.ids).long().to(self.device),
            cos=cos.to(self.device, self.dtype),
            sin=sin.to(self.device, self.dtype),
            slots=torch.from_numpy(batch.slot_mapping[batch.slot_mapping >= 0]).long().to(self.device),
            rows=tuple(rows),
            logits_rows=torch.from_numpy(batch.logits_rows).long().to(self.device) if batch.logits_rows.size else None,
        )

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        size = self.kv_shape.block_size
        for source, target in copies:
            for pool in (self.keys, self.values, *self.scales):
                pool[:, target * size : (target + 1) * size] = pool[:, source * size : (source + 1) * size]

    def embed(self, table: torch.Tensor, batch: PlainBatch) -> torch.Tensor:
        return functional.embedding(batch.ids, table)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is not None:
            x = x + residual
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * (wide * scale).to(self.dtype), x

    def linear(self, x: torch.Tensor, weight: PlainMatrix) -> torch.Tensor:
        return functional.linear(x, *weight)

    def norm_heads(self, qkv: torch.Tensor, query: torch.Tensor, key: torch.Tensor, eps: float) -> torch.Tensor:
        heads = self.heads
        parts = qkv.reshape(len(qkv), -1, heads.head_dim)
        q, k, v = torch.split(parts, [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads], dim=1)
        normed = (self.rms_norm(part, weight, eps, None)[0] for part, weight in ((q, query), (k, key)))
        return torch.cat([*normed, v], dim=1).reshape(qkv.shape)

    def rope_and_write(self, qkv: torch.Tensor, layer: int, batch: PlainBatch) -> torch.Tensor:
        heads, dim = self.heads, self.heads.head_dim
        widths = [heads.num_heads * dim, heads.num_kv_heads * dim, heads.num_kv_heads * dim]
        q, k, v = (part.reshape(len(qkv), -1, dim) for part in torch.split(qkv, widths, dim=-1))
        q, k = self._rotate(q, batch), self._rotate(k, batch)
        written = len(batch.slots)  # dummy rows lie behind the real ones and have no slots
        for at, (pool, fresh) in enumerate(((self.keys, k[:written]), (self.values, v[:written]))):
            kept = fresh
            if self.scales:
                kept, scales = quantise(fresh)
                self.scales[at][layer].index_copy_(0, batch.slots, scales)
            pool[layer].index_copy_(0, batch.slots, kept.to(pool.dtype))
        for name, value in zip("qkv", (q, k, v), strict=True):
            self._see(name, value if name == "q" else value[:written])
        return q

    def _rotate(self, x: torch.Tensor, batch: PlainBatch) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = batch.cos[:, None], batch.sin[:, None]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def attention(self, q: torch.Tensor, layer: int, batch: PlainBatch) -> torch.Tensor:
        group = self.heads.num_heads // self.heads.num_kv_heads
        out = torch.zeros_like(q)
        for first, count, length, slots in batch.rows:
            if not length:
                continue
            keys, values = (self._read(at, layer, slots).repeat_interleave(group, 1) for at in (0, 1))
            mine = q[first : first + count].transpose(0, 1)
            scores = mine @ keys.permute(1, 2, 0) / math.sqrt(self.heads.head_dim)
            every = torch.ones(count, length, dtype=torch.bool, device=self.device)
            hidden = every.triu(length - count + 1)
            if window := self.heads.window(layer):
                hidden |= every.tril(length - count - window)
            scores = scores.masked_fill(hidden, -math.inf)
            self._see("scores", scores)
            weights = scores.float().softmax(-1).to(self.dtype)
            out[first : first + count] = (weights @ values.transpose(0, 1)).transpose(0, 1)
        return out.reshape(len(q), -1)

    def _read(self, at: int, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """Keys (0) or values (1) of ``slots`` in the activation dtype: ``[slots, kv_heads, head_dim]``."""
        read = (self.keys, self.values)[at][layer].index_select(0, slots)
        if self.scales:
            read = read * self.scales[at][layer].index_select(0, slots)[..., None]
        return read.to(self.dtype)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def select(self, x: torch.Tensor, batch: PlainBatch) -> torch.Tensor:
        return x if batch.logits_rows is None else x.index_select(0, batch.logits_rows)

    def logits(self, x: torch.Tensor, head: PlainMatrix) -> torch.Tensor:
        return self.linear(x, head).float()

    def _see(self, name: str, value: torch.Tensor) -> None:
        if self.trace:
            self.trace(name, value)
