"""The torch backend for CPUs.

Matrices are packed once into the layout of oneDNN, which costs no more than the plain product at one row and is 1.5 to
5 times as fast above.  The pool is head-major, ``[blocks * kv_heads, block_size * head_dim]`` per layer, so that one
``index_select`` lays a sequence's keys out as attention wants them.  All rows of one token (decode) are attended to at
once, padded to the longest of their bucket, with the query heads that share a key/value head as rows of one small
matrix; rows of several tokens (prefill) go one by one through the fused kernel.  A layer with a sliding window reads
only the blocks that the window touches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ...core.config import SchedulerConfig
from ..models.config import LlamaConfig
from ..models.rope import Rotary
from .batch import Ints, StepBatch
from .dtypes import SCALE, Formats, quantise
from .ops import HeadShape, KVShape

#: Keys (and values) gathered at once for decode rows; more rows go in several pieces.  Half of it holds 64 rows of
#: 2,048 tokens of the default model.
MAX_GATHER_BYTES = 64 * 2**20


def has_bf16_instructions() -> bool:
    """Whether this CPU multiplies bf16 natively; emulated bf16 is many times slower than float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(torch.cpu._is_avx512_bf16_supported())


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows of one token each.  ``tokens`` ``[rows]`` (None: all tokens of the step, in order), ``gather``
    ``[rows * kv_heads * blocks]`` pool rows, ``mask`` ``[rows * kv_heads, 1, context]`` added to the scores."""

    tokens: torch.Tensor | None
    gather: torch.Tensor
    mask: torch.Tensor
    context: int


@dataclass(frozen=True, slots=True)
class PrefillRow:
    """A row of ``count`` tokens from ``first`` that sees ``context`` tokens of the gathered blocks; ``mask`` None: it
    starts its sequence, plain causal."""

    first: int
    count: int
    context: int
    gather: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class View:
    """What attention reads, the same for all layers with the same window."""

    decode: tuple[DecodeRows, ...]
    prefill: tuple[PrefillRow, ...]


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


class PackedLinear:
    """A matrix in oneDNN's layout, or as it is where oneDNN cannot take it."""

    __slots__ = ("bias", "nbytes", "packed", "plain")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.bias = bias
        self.packed: torch.Tensor | None = None
        self.plain: torch.Tensor | None = None
        native = weight.dtype == torch.float32 or has_bf16_instructions()
        if torch._C._has_mkldnn and native:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        else:
            self.plain = weight.clone()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return out
        assert self.plain is not None
        return functional.linear(x, self.plain, self.bias)


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
        self.group = heads.num_heads // heads.num_kv_heads
        pool = (kv.num_layers, kv.num_all_blocks * kv.num_kv_heads, kv.block_size * kv.head_dim)
        self.keys, self.values = _zeros(pool, kv_dtype), _zeros(pool, kv_dtype)
        self.scales: tuple[torch.Tensor, ...] = ()  # of keys and of values ``[layer, block * kv_head, token]``
        if kv_dtype == torch.int8:
            self.scales = _zeros((*pool[:2], kv.block_size), SCALE), _zeros((*pool[:2], kv.block_size), SCALE)
        self.rotary = Rotary(heads.rope, heads.head_dim)
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
        counts = np.diff(batch.cu_seqlens)[: batch.num_rows]
        sampling = batch.logits_rows
        self._clear_begun_blocks(batch)
        return TorchBatch(
            ids=torch.from_numpy(batch.ids),
            cos=cos[:, None].to(self.dtype),
            sin=sin[:, None].to(self.dtype),
            written=written,
            write=torch.from_numpy(write.reshape(-1)),
            views={window: self._view(batch, counts, window) for window in self._windows},
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

    def _view(self, batch: StepBatch, counts: NDArray[np.intp], window: int) -> View:
        return View(
            decode=self._decode_rows(batch, np.flatnonzero(counts == 1), window),
            prefill=tuple(self._prefill_row(batch, int(row), window) for row in np.flatnonzero(counts > 1)),
        )

    def _decode_rows(self, batch: StepBatch, rows: NDArray[np.intp], window: int) -> tuple[DecodeRows, ...]:
        kv = self.kv_shape
        out: list[DecodeRows] = []
        row_bytes = kv.num_kv_heads * kv.head_dim * max(self.keys.element_size(), self.dtype.itemsize)
        first_blocks = np.maximum(batch.context_lens - window, 0) // kv.block_size if window else batch.context_lens * 0
        seen = batch.context_lens - first_blocks * kv.block_size  # from the first block that the window touches
        for bucket in _buckets(seen, rows, MAX_GATHER_BYTES // row_bytes):
            lengths = seen[bucket].astype(np.int64)
            blocks = -(-int(lengths.max()) // kv.block_size)
            if window:
                columns = first_blocks[bucket, None] + np.arange(blocks)
                tables = np.take_along_axis(
                    batch.block_tables[bucket], np.minimum(columns, batch.block_tables.shape[1] - 1), 1
                ).astype(np.int64)
            else:
                tables = batch.block_tables[bucket, :blocks].astype(np.int64)
            tables = np.where(tables < 0, tables[:, :1], tables)  # never read what another sequence wrote
            gather = tables[:, None, :] * kv.num_kv_heads + np.arange(kv.num_kv_heads)[:, None]
            context = blocks * kv.block_size
            at = np.arange(context)
            hidden = at >= lengths[:, None]
            if window:
                hidden |= at < lengths[:, None] - window
            mask = torch.zeros(len(bucket), context, dtype=self.dtype)
            mask.masked_fill_(torch.from_numpy(hidden), -math.inf)
            tokens = batch.cu_seqlens[bucket]
            whole = len(tokens) == batch.num_tokens and bool((np.diff(tokens) > 0).all())
            out.append(
                DecodeRows(
                    tokens=None if whole else torch.from_numpy(tokens),
                    gather=torch.from_numpy(gather.reshape(-1)),
                    mask=mask.repeat_interleave(kv.num_kv_heads, 0)[:, None],
                    context=context,
                )
            )
        return tuple(out)

    def _prefill_row(self, batch: StepBatch, row: int, window: int) -> PrefillRow:
        kv, first, after = self.kv_shape, int(batch.cu_seqlens[row]), int(batch.cu_seqlens[row + 1])
        context, count = int(batch.context_lens[row]), after - first
        first_block = max(0, context - count - window + 1) // kv.block_size if window else 0
        table = batch.block_tables[row, first_block : -(-context // kv.block_size)].astype(np.int64)
        context -= first_block * kv.block_size
        by_query_head = np.arange(self.heads.num_heads)[:, None] // self.group
        mask = None
        if context > count or 0 < window < context:
            mask = torch.ones(count, context, dtype=torch.bool).tril(context - count)
            if window:
                mask = mask.triu(context - count - window + 1)
        gather = torch.from_numpy((table * kv.num_kv_heads + by_query_head).reshape(-1))
        return PrefillRow(first, count, context, gather, mask)

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
        grouped = q.reshape(num_rows * kv_heads, self.group, dim)
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


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages are taken from the machine when they are first written: a pool of gigabytes costs nothing."""
    bits = {4: np.int32, 2: np.int16, 1: np.int8}[dtype.itemsize]
    return torch.from_numpy(np.zeros(shape, bits)).view(dtype)


def _buckets(context_lens: Ints, rows: NDArray[np.intp], most_tokens: int) -> list[NDArray[np.intp]]:
    """Rows to attend to together, each padded to the longest of its bucket; at most ``most_tokens`` with padding.

    In step order while padding wastes at most a third of it, else sorted and split where lengths fall by half: a split
    costs a few small operators per layer, padding costs reading memory.
    """
    if rows.size == 0:
        return []
    lengths = context_lens[rows]
    if lengths.max() * rows.size <= min(lengths.sum() * 1.5, most_tokens):
        return [rows]
    order = rows[np.argsort(-lengths, kind="stable")]
    out: list[NDArray[np.intp]] = []
    begin = 0
    for index in range(1, len(order) + 1):
        longest = context_lens[order[begin]]
        full = (index - begin + 1) * longest > most_tokens
        if index == len(order) or full or context_lens[order[index]] * 2 < longest:
            out.append(order[begin:index])
            begin = index
    return out
