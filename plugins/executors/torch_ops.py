"""The torch backend for CPUs, over packed matrices.

The pool is head-major, ``[blocks * kv_heads, block_size * head_dim]`` per layer, so that one ``index_select`` lays a
sequence's keys out as attention wants them.  All rows of one token (decode) are attended to at once, padded to the
longest of their bucket, with the query heads that share a key/value head as rows of one small matrix; rows of several
tokens (prefill) go one by one through the fused kernel.  A layer with a sliding window reads only the blocks that the
window touches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from ..models.rope import Rotary
from .batch import StepBatch
from .dtypes import SCALE, Formats, lazy_zeros, quantise
from .ops import HeadShape, KVShape
from .packed_linear import PackedLinear
from .torch_views import MAX_GATHER_BYTES, DecodeRows, PrefillRow, View, Views

if TYPE_CHECKING:
    from ...core.config import SchedulerConfig
    from ..models.config import LlamaConfig


@dataclass(frozen=True, slots=True)
class TorchBatch:
    """A step as index tensors.  ``written`` tokens come first and have pool rows.  ``views`` are by window."""

    ids: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    written: int
    write: torch.Tensor
    views: dict[int, View]
    logits_rows: torch.Tensor | None
    all_sample: bool


class TorchOps:
    """Implements ``Ops`` in float32 or bf16 activations; see there for each operator's contract."""

    def __init__(
        self,
        heads: HeadShape,
        kv: KVShape,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.heads, self.kv_shape, self.dtype = heads, kv, dtype
        pool = (kv.num_layers, kv.num_all_blocks * kv.num_kv_heads, kv.block_size * kv.head_dim)
        self.keys, self.values = lazy_zeros(pool, kv_dtype), lazy_zeros(pool, kv_dtype)
        self.scales: tuple[torch.Tensor, ...] = ()  # of keys and of values ``[layer, block * kv_head, token]``
        if kv_dtype == torch.int8:
            self.scales = lazy_zeros((*pool[:2], kv.block_size), SCALE), lazy_zeros((*pool[:2], kv.block_size), SCALE)
        self.rotary = Rotary(heads.rope, heads.head_dim)
        self._views = Views(heads, kv, dtype, kv_dtype.itemsize)
        self._windows = sorted({heads.window(layer) for layer in range(kv.num_layers)})
        self._weight_bytes = 0
        self._room = [torch.empty(0, dtype=kv_dtype), torch.empty(0, dtype=kv_dtype)]

    # --- weights ---

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear:
        kept = None if bias is None else bias.to(self.dtype).clone()
        made = PackedLinear(weight.to(self.dtype).contiguous(), kept)
        self._weight_bytes += made.nbytes
        return made

    def table(self, weight: torch.Tensor) -> torch.Tensor:
        kept = weight.to(self.dtype)
        self._weight_bytes += kept.nbytes
        return kept

    def vector(self, weight: torch.Tensor) -> torch.Tensor:
        kept = weight.to(self.dtype).clone()
        self._weight_bytes += kept.nbytes
        return kept

    # --- a step ---

    def prepare(self, batch: StepBatch) -> TorchBatch:
        kv, kv_heads = self.kv_shape, self.kv_shape.num_kv_heads
        cos, sin = self.rotary.cos_sin(batch.positions)
        written = int((batch.slot_mapping >= 0).sum())
        slots = batch.slot_mapping[:written].astype(np.int64)
        block_rows = (slots // kv.block_size)[:, None] * kv_heads + np.arange(kv_heads)
        write = block_rows * kv.block_size + (slots % kv.block_size)[:, None]
        sampling = batch.logits_rows
        self._clear_begun_blocks(batch)
        return TorchBatch(
            ids=torch.from_numpy(batch.ids),
            cos=cos[:, None].to(self.dtype),
            sin=sin[:, None].to(self.dtype),
            written=written,
            write=torch.from_numpy(write.reshape(-1)),
            views={window: self._views.view(batch, window) for window in self._windows},
            logits_rows=torch.from_numpy(sampling) if sampling.size else None,
            all_sample=sampling.size == batch.num_tokens,
        )

    def _clear_begun_blocks(self, batch: StepBatch) -> None:
        """Zero each block that a row begins now and does not fill: padded attention multiplies what lies behind a
        sequence's end by zero, which is only zero if no earlier owner left infinities there."""
        size, heads = self.kv_shape.block_size, self.kv_shape.num_kv_heads
        lengths = batch.context_lens[: batch.num_rows]
        starts = batch.positions[batch.cu_seqlens[: batch.num_rows]]
        last = lengths // size
        begun = np.flatnonzero((lengths % size != 0) & (starts <= last * size))
        if begun.size:
            blocks = batch.block_tables[begun, last[begun]].astype(np.int64)
            rows = torch.from_numpy((blocks[:, None] * heads + np.arange(heads)).reshape(-1))
            for pool in (self.keys, self.values, *self.scales):
                pool.index_fill_(1, rows, 0)

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        heads = self.kv_shape.num_kv_heads
        for source, target in copies:
            for pool in (self.keys, self.values, *self.scales):
                copy = pool[:, target * heads : (target + 1) * heads]
                torch.nan_to_num(pool[:, source * heads : (source + 1) * heads], 0.0, 0.0, 0.0, out=copy)

    # --- operators ---

    def embed(self, table: torch.Tensor, batch: TorchBatch) -> torch.Tensor:
        return functional.embedding(batch.ids, table)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is not None:
            x = residual.add_(x)
        return functional.rms_norm(x, (x.shape[-1],), weight, eps), x

    def linear(self, x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
        return weight(x)

    def norm_heads(self, qkv: torch.Tensor, query: torch.Tensor, key: torch.Tensor, eps: float) -> torch.Tensor:
        num_heads, kv_heads, dim = self.heads.num_heads, self.heads.num_kv_heads, self.heads.head_dim
        parts = qkv.view(len(qkv), num_heads + 2 * kv_heads, dim)
        for part, weight in ((parts[:, :num_heads], query), (parts[:, num_heads : num_heads + kv_heads], key)):
            part.copy_(functional.rms_norm(part, (dim,), weight, eps))
        return qkv

    def rope_and_write(self, qkv: torch.Tensor, layer: int, batch: TorchBatch) -> torch.Tensor:
        num_heads, kv_heads, dim = self.heads.num_heads, self.heads.num_kv_heads, self.heads.head_dim
        parts = qkv.view(len(qkv), num_heads + 2 * kv_heads, dim)
        turning = parts[:, : num_heads + kv_heads]
        first, second = turning[..., : dim // 2], turning[..., dim // 2 :]
        turned = torch.empty_like(turning, memory_format=torch.contiguous_format)
        torch.mul(first, batch.cos, out=turned[..., : dim // 2]).addcmul_(second, batch.sin, value=-1)
        torch.mul(second, batch.cos, out=turned[..., dim // 2 :]).addcmul_(first, batch.sin)
        written = batch.written
        made = (turned[:written, num_heads:], parts[:written, -kv_heads:])
        for at, (pool, fresh) in enumerate(zip((self.keys, self.values), made, strict=True)):
            kept = fresh.reshape(-1, dim)
            if self.scales:
                kept, scales = quantise(kept)
                self.scales[at][layer].view(-1).index_copy_(0, batch.write, scales)
            pool[layer].view(-1, dim).index_copy_(0, batch.write, kept.to(pool.dtype))
        return turned[:, :num_heads]

    def attention(self, q: torch.Tensor, layer: int, batch: TorchBatch) -> torch.Tensor:
        view = batch.views[self.heads.window(layer)]
        if len(view.decode) == 1 and view.decode[0].tokens is None:
            return self._decode(q, layer, view.decode[0])
        out = torch.zeros(len(q), self.heads.num_heads * self.heads.head_dim, dtype=self.dtype)
        for rows in view.decode:
            assert rows.tokens is not None
            out.index_copy_(0, rows.tokens.long(), self._decode(q.index_select(0, rows.tokens), layer, rows))
        for row in view.prefill:
            out[row.first : row.first + row.count] = self._prefill(q, layer, row)
        return out

    def _decode(self, q: torch.Tensor, layer: int, rows: DecodeRows) -> torch.Tensor:
        kv_heads, dim, num_rows = self.heads.num_kv_heads, self.heads.head_dim, len(q)
        keys, values = self._gathered(layer, rows.gather)
        keys, values = keys.view(-1, rows.context, dim), values.view(-1, rows.context, dim)
        grouped = q.reshape(num_rows * kv_heads, -1, dim)
        scores = torch.baddbmm(rows.mask, grouped, keys.transpose(1, 2), alpha=1 / math.sqrt(dim))
        return torch.bmm(scores.softmax(-1), values).view(num_rows, -1)

    def _prefill(self, q: torch.Tensor, layer: int, row: PrefillRow) -> torch.Tensor:
        heads, dim = self.heads.num_heads, self.heads.head_dim
        keys, values = (part.view(1, heads, -1, dim)[:, :, : row.context] for part in self._gathered(layer, row.gather))
        mine = q[row.first : row.first + row.count].transpose(0, 1)[None]
        out = functional.scaled_dot_product_attention(
            mine, keys, values, attn_mask=row.mask, is_causal=row.mask is None
        )
        return out[0].transpose(0, 1).reshape(row.count, heads * dim)

    def _gathered(self, layer: int, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the pool rows ``index``, in reused memory and the activation dtype."""
        width = self.keys.shape[-1]
        size = index.numel() * width
        if self._room[0].numel() < size:
            self._room = [torch.empty(size, dtype=self.keys.dtype) for _ in range(2)]
        for pool, room in zip((self.keys, self.values), self._room, strict=True):
            torch.index_select(pool[layer], 0, index, out=room[:size].view(-1, width))
        keys, values = self._room[0][:size].to(self.dtype), self._room[1][:size].to(self.dtype)
        for part, scales in zip((keys, values), self.scales, strict=False):  # none unless the pool is int8
            part.view(-1, self.heads.head_dim).mul_(scales[layer].index_select(0, index).view(-1, 1))
        return keys, values

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def select(self, x: torch.Tensor, batch: TorchBatch) -> torch.Tensor:
        return x if batch.all_sample or batch.logits_rows is None else x.index_select(0, batch.logits_rows)

    def logits(self, x: torch.Tensor, head: PackedLinear) -> torch.Tensor:
        return head(x).float()


def workspace_bytes(model: LlamaConfig, limits: SchedulerConfig, max_context: int, formats: Formats) -> int:
    """Bytes of the largest intermediate results of one step: activations, logits, gathered keys and values."""
    widest = 4 * model.hidden_size + 3 * model.ffn_size + 2 * model.q_size + 4 * model.kv_size
    activations = limits.token_budget * widest * formats.compute.itemsize
    logits = min(limits.max_running, limits.token_budget) * model.vocab_size * 4
    one_prefill = 2 * max_context * model.q_size * max(formats.kv.itemsize, formats.compute.itemsize)
    return activations + logits + max(2 * MAX_GATHER_BYTES, one_prefill)
