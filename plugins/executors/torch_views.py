"""What attention reads in a step, as index tensors that all layers with the same window share.

Rows of one token (decode) are put into buckets and padded to the longest of their bucket; rows of several tokens
(prefill) stay by themselves.  With a sliding window only the blocks that the window touches are named.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import Ints, StepBatch
from .ops import HeadShape, KVShape

#: Keys (and values) gathered at once for decode rows; more rows go in several pieces.  Half of it holds 64 rows of
#: 2,048 tokens of the default model.
MAX_GATHER_BYTES = 64 * 2**20


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


class Views:
    """Makes the views of steps over one pool.  ``pool_bytes``: of one element of the pool."""

    def __init__(self, heads: HeadShape, kv: KVShape, dtype: torch.dtype, pool_bytes: int) -> None:
        self.heads, self.kv, self.dtype = heads, kv, dtype
        self.group = heads.num_heads // heads.num_kv_heads
        self.element_size = max(pool_bytes, dtype.itemsize)  # gathered as stored, then cast

    def view(self, batch: StepBatch, window: int) -> View:
        """Of one step, for layers with this ``window``; 0: none."""
        counts = np.diff(batch.cu_seqlens)[: batch.num_rows]
        return View(
            decode=self._decode_rows(batch, np.flatnonzero(counts == 1), window),
            prefill=tuple(self._prefill_row(batch, int(row), window) for row in np.flatnonzero(counts > 1)),
        )

    def _decode_rows(self, batch: StepBatch, rows: NDArray[np.intp], window: int) -> tuple[DecodeRows, ...]:
        kv = self.kv
        out: list[DecodeRows] = []
        row_bytes = kv.num_kv_heads * kv.head_dim * self.element_size
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
        kv, first, after = self.kv, int(batch.cu_seqlens[row]), int(batch.cu_seqlens[row + 1])
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
