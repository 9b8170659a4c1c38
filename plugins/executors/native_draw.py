"""A draw by the native kernels: the standard sampler's plan by address, and what comes out."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineFault
from ...core.policy import SampleOutput
from . import native_abi as abi
from .native_batch import within
from .standard_plan import StandardPlan, failed


@dataclass(frozen=True, slots=True)
class NativeDraw:
    """A plan that has been checked; ``struct`` points into ``kept`` and ``found``: the rows' ids, then their states."""

    struct: abi.Draw
    kept: tuple[Any, ...]
    found: ctypes.Array[ctypes.c_int32]
    plan: StandardPlan

    def read(self) -> SampleOutput:
        """What was drawn, once it is."""
        found, rows = self.found[:], self.struct.num_rows
        return SampleOutput(found[:rows], failed(self.plan, found[rows:]))


def prepare_draw(plan: StandardPlan, rows: int, vocab: int) -> NativeDraw:
    """A draw from ``rows`` rows of ``vocab`` logits.  Raises EngineFault for a plan that does not fit them."""
    found = (ctypes.c_int32 * (2 * rows))()
    ids = ctypes.addressof(found)
    if plan.best_only and len(plan) == rows and not len(plan.banned_ids):
        # Most steps of most users: with cold caches each NumPy array costs as much as a thousand logits.
        zeros = (ctypes.c_double * rows)()
        struct = abi.Draw(None, ctypes.addressof(zeros), num_rows=rows, vocab=vocab)
        struct.ids, struct.states = ids, ids + 4 * rows
        return NativeDraw(struct, (zeros,), found, plan)
    wide = (plan.temperature, plan.top_p, plan.min_p, plan.uniform)
    columns: list[NDArray[Any]] = [np.ascontiguousarray(column, np.float64) for column in wide]
    columns.append(np.ascontiguousarray(plan.top_k))
    bans: list[NDArray[Any]] = [np.ascontiguousarray(pairs) for pairs in (plan.banned_rows, plan.banned_ids)]
    if any(column.shape != (rows,) for column in columns) or columns[-1].dtype != np.int32:
        raise EngineFault(f"a plan of {[len(column) for column in columns]} entries for {rows} rows of logits")
    for pairs, limit in zip(bans, (rows, vocab), strict=True):
        if pairs.shape != bans[0].shape or pairs.dtype != np.int64 or not within(pairs, limit):
            raise EngineFault(f"banned tokens outside {rows} rows of {vocab} ids")
    arrays: list[NDArray[Any]] = [*columns, *bans]
    at = [array.ctypes.data for array in arrays]
    struct = abi.Draw(None, *at, ids, ids + 4 * rows, rows, vocab, len(bans[0]), 62 - vocab.bit_length())
    return NativeDraw(struct, tuple(arrays), found, plan)
