"""A step as flat int32 arrays, built and checked on the host before any backend sees it.

Rows lie behind each other in one array of tokens; dummy rows (static batching) follow the real ones, cost the same
in every matrix and are written nowhere.  A backend trusts these arrays, so everything is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineFault

if TYPE_CHECKING:  # a machine with nothing but torch and NumPy can run the operators
    from ...core.messages import GrantedRow, StepLaunch

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What ids, positions and slots of a step have to stay within."""

    vocab_size: int
    max_context: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step.  ``num_rows`` counts real rows; arrays over rows hold dummy rows too, behind them.

    ids, positions, slot_mapping  ``(num_tokens,)``   slot -1: the token is not written
    cu_seqlens                    ``(rows + 1,)``     where each row's tokens begin; the last is num_tokens
    context_lens                  ``(rows,)``         tokens in the cache once this step has written; 0 for a dummy row
    block_tables                  ``(rows, widest)``  padded with -1
    logits_rows                   ``(sampling,)``     token index of every row that samples, in row order
    sampling_rids                                     their request ids
    """

    ids: Ints
    positions: Ints
    slot_mapping: Ints
    cu_seqlens: Ints
    context_lens: Ints
    block_tables: Ints
    logits_rows: Ints
    num_rows: int
    sampling_rids: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, dummies included."""
        return int(self.ids.shape[0])


def build(launch: StepLaunch, last_ids: Mapping[str, int], limits: Limits) -> StepBatch:
    """``launch`` as arrays.  ``last_ids``: the id each rid sampled last, for rows without ids.

    Raises EngineFault naming the rid for ids, positions, tables or slots that do not fit ``limits`` or each other.
    """
    rows = launch.rows
    counts = [row.count for row in rows] + list(launch.padding)
    starts = [row.start for row in rows] + [0] * len(launch.padding)
    if min(counts, default=1) < 1 or min(starts, default=0) < 0:
        raise EngineFault(f"step {launch.step}: a row without tokens or with a negative start: {counts}, {starts}")
    num_real = sum(counts[: len(rows)])
    cu_seqlens = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=cu_seqlens[1:])
    ids = np.zeros(cu_seqlens[-1], np.int32)
    ids[:num_real] = _ids(rows, last_ids, limits)
    within = np.arange(cu_seqlens[-1], dtype=np.int32) - np.repeat(cu_seqlens[:-1], counts)
    positions = within + np.repeat(np.asarray(starts, np.int32), counts)
    context_lens = np.zeros(len(counts), np.int32)
    context_lens[: len(rows)] = [row.start + row.count for row in rows]
    block_tables, slots = _places(rows, positions[:num_real], limits)
    slot_mapping = np.full(cu_seqlens[-1], -1, np.int32)
    slot_mapping[:num_real] = slots
    tables = np.full((len(counts), block_tables.shape[1]), -1, np.int32)
    tables[: len(rows)] = block_tables
    sampling = [index for index, row in enumerate(rows) if row.samples]
    return StepBatch(
        ids=ids,
        positions=positions,
        slot_mapping=slot_mapping,
        cu_seqlens=cu_seqlens,
        context_lens=context_lens,
        block_tables=tables,
        logits_rows=(cu_seqlens[1:][sampling] - 1).astype(np.int32),
        num_rows=len(rows),
        sampling_rids=tuple(rows[index].rid for index in sampling),
    )


def _ids(rows: tuple[GrantedRow, ...], last_ids: Mapping[str, int], limits: Limits) -> Ints:
    flat: list[int] = []
    for row in rows:
        if row.token_ids is None:
            if row.rid not in last_ids or row.count != 1:
                raise EngineFault(f"{row.rid}: a row of {row.count} without ids, and no id sampled before it")
            flat.append(last_ids[row.rid])
            continue
        if len(row.token_ids) != row.count:
            raise EngineFault(f"{row.rid}: {len(row.token_ids)} ids for a row of {row.count}")
        if min(row.token_ids) < 0 or max(row.token_ids) >= limits.vocab_size:
            raise EngineFault(f"{row.rid}: an id outside the vocabulary of {limits.vocab_size}")
        flat.extend(row.token_ids)
    return np.asarray(flat, np.int32)


def _places(rows: tuple[GrantedRow, ...], positions: Ints, limits: Limits) -> tuple[Ints, Ints]:
    """(block tables of the real rows padded with -1, slot of every real token), checked against each other."""
    size = limits.block_size
    needed = [-(-(row.start + row.count) // size) for row in rows]
    tables = np.full((len(rows), max(needed, default=1)), -1, np.int32)
    for index, (row, blocks) in enumerate(zip(rows, needed, strict=True)):
        if row.start + row.count > limits.max_context:
            raise EngineFault(f"{row.rid}: {row.start + row.count} tokens, the context holds {limits.max_context}")
        if len(row.block_table) < blocks:
            raise EngineFault(f"{row.rid}: {len(row.block_table)} blocks for {row.start + row.count} tokens")
        if len(row.slot_mapping) != row.count:
            raise EngineFault(f"{row.rid}: {len(row.slot_mapping)} slots for a row of {row.count}")
        tables[index, :blocks] = row.block_table[:blocks]
    used = np.arange(tables.shape[1]) < np.asarray(needed, np.int32)[:, None]
    outside = (used & ((tables < 0) | (tables >= limits.num_blocks))).any(1)
    if outside.any():
        row = rows[int(outside.argmax())]
        raise EngineFault(f"{row.rid}: a block outside the pool of {limits.num_blocks}: {row.block_table}")
    slots = np.fromiter((slot for row in rows for slot in row.slot_mapping), np.int32, positions.shape[0])
    owner = np.repeat(np.arange(len(rows)), [row.count for row in rows])
    wrong = np.flatnonzero(slots != tables[owner, positions // size] * size + positions % size)
    if wrong.size:
        at = int(wrong[0])
        raise EngineFault(f"{rows[owner[at]].rid}: slot {slots[at]} at position {positions[at]} is not in its table")
    if np.unique(slots).size != slots.size:
        raise EngineFault("two tokens of one step share a slot")
    return tables, slots
