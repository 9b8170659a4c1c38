"""A step for the native kernels: its arrays by address, checked before C++ sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineFault
from . import native_abi as abi
from .batch import Ints, StepBatch
from .ops import KVShape


@dataclass(frozen=True, slots=True)
class NativeBatch:
    """A step that has been checked; ``struct`` points into ``kept``.  Its ids are below ``ids_below``, 0 where nobody
    has looked."""

    struct: abi.Batch
    kept: tuple[Any, ...]
    ids: Ints
    num_tokens: int
    logits_rows: Ints | None
    ids_below: int


def check_batch(batch: StepBatch, kv: KVShape) -> None:
    """Whatever C++ uses as an index is within what it indexes.  Raises EngineFault."""
    rows, tokens = len(batch.context_lens), batch.num_tokens
    cu, context, tables = batch.cu_seqlens, batch.context_lens, batch.block_tables
    shapes = (batch.positions.shape, batch.slot_mapping.shape, cu.shape, tables.shape[:1], tables.ndim)
    if shapes != ((tokens,), (tokens,), (rows + 1,), (rows,), 2) or batch.logits_rows.ndim != 1:
        raise EngineFault(f"arrays of a step do not fit each other: {tokens} tokens, {rows} rows, {shapes}")
    counts = np.diff(cu)
    if cu[0] != 0 or cu[-1] != tokens or (counts < 1).any():
        raise EngineFault(f"cu_seqlens {cu.tolist()} do not cut {tokens} tokens into rows")
    if not tokens:
        return
    last = batch.positions[cu[1:] - 1]
    real = context > 0
    wanted = np.arange(tokens) - np.repeat(cu[1:] - 1, counts) + np.repeat(last, counts)
    if (context < 0).any() or (batch.positions != wanted).any() or (last[real] + 1 != context[real]).any():
        raise EngineFault("positions of a row do not end where its context does")
    if (batch.positions < 0).any() or context.max() > tables.shape[1] * kv.block_size:
        raise EngineFault(f"a context of {context.max()} tokens, tables of {tables.shape[1]} blocks")
    used = np.arange(tables.shape[1]) * kv.block_size < context[:, None]
    if used.any() and not 0 <= tables[used].min() <= tables[used].max() < kv.num_blocks:
        raise EngineFault(f"a block outside the pool of {kv.num_blocks}")
    if batch.slot_mapping.min() < -1 or batch.slot_mapping.max() >= kv.num_blocks * kv.block_size:
        raise EngineFault(f"a slot outside the pool of {kv.num_blocks} blocks of {kv.block_size}")
    sampling = batch.logits_rows
    if sampling.size and not 0 <= sampling.min() <= sampling.max() < tokens:
        raise EngineFault(f"a row to sample outside {tokens} tokens")


def check_ids(ids: Ints, vocab_size: int) -> None:
    """Raises EngineFault."""
    if not within(ids, vocab_size):
        raise EngineFault(f"an id outside the vocabulary of {vocab_size}")


def within(numbers: NDArray[Any], limit: int) -> bool:
    return not numbers.size or bool(0 <= numbers.min() <= numbers.max() < limit)
