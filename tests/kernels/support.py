"""Kernels built once a run, on the emulator; steps of test data sent through the launchers."""

from __future__ import annotations

from functools import cache

import numpy as np
from tests.emulator.module import RawModule

from mainspring.plugins.kernels.cuda.launch import Attention, Parts
from mainspring.plugins.kernels.cuda.names import AttentionSpec
from mainspring.plugins.kernels.cuda.plan import SharedPrefix, prefill_tiles, prefix_tiles

from .paged import Case, Stored


@cache
def attention(spec: AttentionSpec) -> Attention:
    """The kernels of ``spec``; specs that differ in the number of heads only share one build on disk."""
    return Attention(RawModule, spec)


def parts_for(case: Case, rows: int, num_slots: int) -> Parts:
    """Poisoned room for parts."""
    shape = (rows, case.spec.num_heads, num_slots)
    return Parts(
        np.full((*shape, case.spec.head_dim), np.nan, np.float32), np.full((*shape, 2), np.nan, np.float32), num_slots
    )


def decode(case: Case, num_splits: int = 1, window: int = 0, kernels: Attention | None = None) -> Stored:
    """One token a row."""
    out, rows = case.out(), len(case.lengths)
    (kernels or attention(case.spec)).decode(
        out, case.q, case.pool, case.tables, case.lengths, num_rows=rows, table_width=case.width,
        parts=parts_for(case, rows, num_splits), num_splits=num_splits, min_split=16, window=window,
    )  # fmt: skip
    return out


def prefill(case: Case, window: int = 0, kernels: Attention | None = None) -> Stored:
    """Every row's tokens at once."""
    out, kernels = case.out(), kernels or attention(case.spec)
    tiles = prefill_tiles(list(case.starts), case.spec.group, kernels.tile_rows)
    kernels.prefill(
        out, case.q, case.pool, case.tables, case.lengths, case.starts, tiles, num_tiles=len(tiles),
        table_width=case.width, window=window,
    )  # fmt: skip
    return out


def decode_shared(
    case: Case, shared: list[SharedPrefix], split: int = 32, num_splits: int = 2, kernels: Attention | None = None
) -> Stored:
    """One token a row, what the rows share read once."""
    out, kernels, rows = case.out(), kernels or attention(case.spec), len(case.lengths)
    plan = prefix_tiles(
        shared, [(row, row) for row in range(rows)], case.spec.group, kernels.instances["prefix"].rows, split
    )
    parts = parts_for(case, rows, plan.num_slots + num_splits)
    kernels.prefix(
        parts, case.q, case.pool, case.tables, plan.tiles, plan.members, num_tiles=len(plan.tiles),
        table_width=case.width,
    )  # fmt: skip
    kernels.decode(
        out, case.q, case.pool, case.tables, case.lengths, num_rows=rows, table_width=case.width, parts=parts,
        num_splits=num_splits, min_split=16, firsts=plan.firsts, prefix_parts=plan.prefix_parts,
    )  # fmt: skip
    return out
