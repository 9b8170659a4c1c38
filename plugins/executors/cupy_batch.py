"""A step's arrays on the device, at the places that kernels and captured graphs want them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..kernels.cuda.launch import Attention, Parts
from ..kernels.cuda.plan import SharedPrefix, choose_splits, prefill_tiles
from . import cupy_shared
from .batch import Ints, StepBatch
from .cupy_buffers import Staging
from .cupy_device import Device


class SharedRows(NamedTuple):
    """Rows of one token that begin with the same blocks: arrays of ``plan.PrefixPlan``; ``parts`` has room for theirs
    and for the splits of what is left."""

    parts: Parts
    tiles: torch.Tensor
    members: torch.Tensor
    firsts: torch.Tensor
    prefix_parts: torch.Tensor


class DecodeRows(NamedTuple):
    """Rows of one token.  ``entries`` ``[rows, 2]`` are (row of the tables, token); None: row i, token i.  ``parts``:
    room for the results of ``splits`` parts of each context, None for one part."""

    entries: torch.Tensor | None
    num_rows: int
    splits: int
    parts: Parts | None
    shared: SharedRows | None = None


class PrefillRows(NamedTuple):
    """Rows of several tokens: ``tiles`` ``[tiles, 2]`` of (row, first of its queries), each for a block of threads."""

    starts: torch.Tensor
    tiles: torch.Tensor


@dataclass(frozen=True, slots=True)
class CupyBatch:
    """A step on the device.  Tokens from ``num_real`` on belong to dummy rows, which attend to nothing.

    ``tables`` int32 ``[rows, at least table_width]`` and ``lengths`` int32 ``[rows]`` are those of all real rows.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    num_real: int
    tables: torch.Tensor
    table_width: int
    lengths: torch.Tensor
    decode: DecodeRows | None
    prefill: PrefillRows | None
    logits_rows: torch.Tensor | None
    all_sample: bool


class Layout:
    """Brings steps to the device."""

    def __init__(self, attention: Attention, device: Device, block_size: int, max_context: int) -> None:
        self._attention, self._device, self._block_size = attention, device, block_size
        self._max_context, self._table_width = max_context, -(-max_context // block_size)
        self._staging = Staging(device)
        self._tables = torch.empty(0, dtype=torch.int32)
        self._parts = torch.empty(0), torch.empty(0)
        self._shares = "prefix" in attention.instances

    def reserve(self, num_tokens: int, num_rows: int) -> None:
        """Room for steps of so many tokens and rows."""
        spec, device = self._attention.spec, self._device.device
        tiles = num_rows + num_tokens * spec.group // self._attention.tile_rows
        shared = num_rows * (4 + 8 * cupy_shared.MOST_PARTS * spec.group) if self._shares else 0
        self._staging.reserve(3 * num_tokens + num_rows * (self._table_width + 6) + 2 * tiles + shared, 13)
        self._tables = torch.zeros(num_rows, self._table_width, dtype=torch.int32, device=device)
        # choose_splits makes two waves of blocks, the last row's splits included.
        pairs = num_rows + -(-2 * self._device.num_multiprocessors // self._attention.head_blocks)
        pairs += num_rows * cupy_shared.MOST_PARTS if self._shares else 0
        self._parts = (
            torch.empty(pairs * spec.num_heads * spec.head_dim, device=device),
            torch.empty(pairs * spec.num_heads * 2, device=device),
        )

    @property
    def num_bytes(self) -> int:
        """Taken on the device."""
        return self._staging.num_bytes + sum(part.nbytes for part in (self._tables, *self._parts))

    def shared(self, batch: StepBatch) -> list[SharedPrefix]:
        """Beginnings that real rows of one token share, worth a kernel of its own; rows are numbered among those."""
        if not self._shares:
            return []
        one = np.flatnonzero(np.diff(batch.cu_seqlens[: batch.num_rows + 1]) == 1)
        found = cupy_shared.find(batch.block_tables[one], batch.context_lens[one], self._block_size)
        return found if cupy_shared.tokens_saved(found) >= cupy_shared.LEAST_SAVED else []

    def bring(self, batch: StepBatch) -> CupyBatch:
        """Any step."""
        real, starts = batch.num_rows, batch.cu_seqlens[: batch.num_rows + 1]
        counts = np.diff(starts)
        one, several = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        entries = np.stack((one, starts[one]), 1).astype(np.int32)
        group, tile_rows = self._attention.spec.group, self._attention.tile_rows
        tiles = prefill_tiles(starts.tolist(), group, tile_rows, several.tolist())
        lengths, tables = batch.context_lens[:real], batch.block_tables[:real]
        arrays = [batch.ids, batch.positions, batch.slot_mapping, lengths, starts, entries, tiles]
        arrays += [batch.logits_rows, tables]
        plan = None
        if shared := self.shared(batch):
            plan = cupy_shared.plan(shared, entries, group, self._attention.instances["prefix"].rows)
            arrays += [plan.tiles, plan.members, plan.firsts, plan.prefix_parts]
        there = self._staging.upload(arrays)
        ids, positions, slots, there_lengths, there_starts, there_entries, there_tiles, rows, there_tables = there[:9]
        decode = None
        if one.size:
            decode = self._decode(there_entries, one.size, int(lengths[one].max()))
        if plan is not None and decode is not None:
            parts = Parts(*self._parts, plan.num_slots + decode.splits)
            decode = decode._replace(shared=SharedRows(parts, *there[9:]))
        return CupyBatch(
            ids=ids,
            positions=positions,
            slots=slots,
            num_real=int(starts[-1]),
            tables=there_tables,
            table_width=tables.shape[1],
            lengths=there_lengths,
            decode=decode,
            prefill=PrefillRows(there_starts, there_tiles) if several.size else None,
            logits_rows=rows if batch.logits_rows.size else None,
            all_sample=batch.logits_rows.size == batch.num_tokens,
        )

    def bring_decode(self, batch: StepBatch, size: int) -> CupyBatch:
        """A step of one token in each row, every real one sampling, padded with empty rows to ``size``.

        Everything lies at the same address each time; only the block tables are copied once more for that.
        """
        real = batch.num_rows
        arrays = [
            _padded(batch.ids, size, 0),
            _padded(batch.positions, size, 0),
            _padded(batch.slot_mapping, size, -1),
            _padded(batch.context_lens, size, 0),
            batch.block_tables[:real],
        ]
        ids, positions, slots, lengths, tables = self._staging.upload(arrays)
        self._tables[:real, : tables.shape[1]].copy_(tables)
        return CupyBatch(
            ids=ids,
            positions=positions,
            slots=slots,
            num_real=size,
            tables=self._tables,
            table_width=self._table_width,
            lengths=lengths,
            decode=self._decode(None, size, self._max_context),
            prefill=None,
            logits_rows=lengths,  # any tensor will do: all rows sample
            all_sample=True,
        )

    def _decode(self, entries: torch.Tensor | None, num_rows: int, longest: int) -> DecodeRows:
        blocks = num_rows * self._attention.head_blocks
        splits = choose_splits(blocks, longest, self._device.num_multiprocessors)
        parts = Parts(*self._parts, splits) if splits > 1 else None
        return DecodeRows(entries, num_rows, splits, parts)


def _padded(array: Ints, size: int, fill: int) -> Ints:
    """``array`` followed by ``fill`` up to ``size`` elements."""
    out = np.full(size, fill, np.int32)
    out[: len(array)] = array
    return out
