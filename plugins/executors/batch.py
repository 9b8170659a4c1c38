"""A step as flat int32 arrays, built and checked on the host before any backend sees it.

Rows lie behind each other in one array of tokens; dummy rows (static batching) follow the real ones, cost the same
in every matrix and are written nowhere.  A backend trusts these arrays, so everything is checked here.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
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
class Checked:
    """A batch is within ``limits``, its positions are below ``positions``, and its arrays lie behind each other in
    ``packed``, in the order of their names in ``StepBatch``, each from its entry of ``cuts`` on."""

    limits: Limits
    positions: int
    packed: array[int]
    cuts: list[int]


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One step.  ``num_rows`` counts real rows; arrays over rows hold dummy rows too, behind them.  Nobody but ``fill``
    writes into them: a backend trusts what ``build`` has checked.

    ids, positions, slot_mapping  ``(num_tokens,)``   slot -1: the token is not written
    cu_seqlens                    ``(rows + 1,)``     where each row's tokens begin; the last is num_tokens
    context_lens                  ``(rows,)``         tokens in the cache once this step has written; 0 for a dummy row
    block_tables                  ``(rows, widest)``  padded with -1
    logits_rows                   ``(sampling,)``     token index of every row that samples, in row order
    sampling_rids                                     their request ids
    missing                                           (token, rid) of ids that an earlier step draws, 0 until ``fill``
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
    missing: tuple[tuple[int, str], ...] = ()
    checked: Checked | None = field(default=None, init=False, compare=False)  # by ``build``, of what nobody has changed

    @property
    def num_tokens(self) -> int:
        """Tokens of the step, dummies included."""
        return int(self.ids.shape[0])

    def arrays(self) -> tuple[Ints, ...]:
        """All of them, in order."""
        return (
            self.ids, self.positions, self.slot_mapping, self.cu_seqlens, self.context_lens, self.block_tables,
            self.logits_rows,
        )  # fmt: skip


def build(launch: StepLaunch, limits: Limits) -> StepBatch:
    """``launch`` as arrays.  Raises EngineFault naming the rid for ids, positions, tables or slots that do not
    fit ``limits`` or each other."""
    rows, padding = launch.rows, list(launch.padding)
    counts, starts = [row.count for row in rows] + padding, [row.start for row in rows]
    if min(counts, default=1) < 1 or min(starts, default=0) < 0:
        raise EngineFault(f"step {launch.step}: a row without tokens or with a negative start: {counts}, {starts}")
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    contexts: list[int] = []
    tables: list[int] = []
    missing: list[tuple[int, str]] = []
    widest = max([-(-(row.start + row.count) // limits.block_size) for row in rows], default=1)
    for row in rows:
        table = _table(row, limits)
        if row.token_ids is None:
            missing.append((len(ids), row.rid))
        ids += _ids(row, limits)
        positions += range(row.start, row.start + row.count)
        slots += row.slot_mapping
        contexts.append(row.start + row.count)
        tables += table
        tables += [-1] * (widest - len(table))
    if len({*slots}) != len(slots):
        raise EngineFault("two tokens of one step share a slot")
    for count in padding:
        ids += [0] * count
        positions += range(count)
        slots += [-1] * count
        contexts.append(0)
        tables += [-1] * widest
    ends = [*accumulate(counts)]
    sampling = [index for index, row in enumerate(rows) if row.samples]
    parts = ids, positions, slots, [0, *ends], contexts, tables, [ends[index] - 1 for index in sampling]
    packed = array("i", [*chain.from_iterable(parts)])  # NumPy takes lists far more slowly
    numbers, cuts = np.frombuffer(packed, np.int32), [0, *accumulate(map(len, parts))]
    at = [numbers[begin:end] for begin, end in pairwise(cuts)]
    rids = tuple([rows[index].rid for index in sampling])
    batch = StepBatch(
        at[0],
        at[1],
        at[2],
        at[3],
        at[4],
        at[5].reshape(len(counts), widest),
        at[6],
        num_rows=len(rows),
        sampling_rids=rids,
        missing=tuple(missing),
    )
    object.__setattr__(batch, "checked", Checked(limits, max((*contexts, *padding), default=0), packed, cuts[:-1]))
    return batch


def fill(batch: StepBatch, last_ids: Mapping[str, int], limits: Limits) -> None:
    """Write the missing ids: what each of these rids sampled last.  Raises EngineFault."""
    for token, rid in batch.missing:
        if rid not in last_ids:
            raise EngineFault(f"{rid}: a row without ids, and no id sampled before it")
        if not 0 <= last_ids[rid] < limits.vocab_size:
            raise EngineFault(f"{rid}: an id outside the vocabulary of {limits.vocab_size}")
        batch.ids[token] = last_ids[rid]


def _ids(row: GrantedRow, limits: Limits) -> tuple[int, ...]:
    if row.token_ids is None:
        if row.count != 1:
            raise EngineFault(f"{row.rid}: a row of {row.count} without ids")
        return (0,)
    ids = tuple(row.token_ids)
    if len(ids) != row.count:
        raise EngineFault(f"{row.rid}: {len(ids)} ids for a row of {row.count}")
    if min(ids) < 0 or max(ids) >= limits.vocab_size:
        raise EngineFault(f"{row.rid}: an id outside the vocabulary of {limits.vocab_size}")
    return ids


def _table(row: GrantedRow, limits: Limits) -> tuple[int, ...]:
    """The blocks that the row's context fills; its slots are where they say."""
    rid, size, start, count = row.rid, limits.block_size, row.start, row.count
    slots = tuple(row.slot_mapping)  # an allocator may hand over any sequence
    stop = start + count
    if stop > limits.max_context:
        raise EngineFault(f"{rid}: {stop} tokens, the context holds {limits.max_context}")
    blocks = -(-stop // size)
    table = tuple(row.block_table[:blocks])
    if len(table) < blocks:
        raise EngineFault(f"{rid}: {len(table)} blocks for {stop} tokens")
    if min(table) < 0 or max(table) >= limits.num_blocks:
        raise EngineFault(f"{rid}: a block outside the pool of {limits.num_blocks}: {row.block_table}")
    if len(slots) != count:
        raise EngineFault(f"{rid}: {len(slots)} slots for a row of {count}")
    for at, slot in zip(range(start, stop), slots, strict=True):
        if slot != table[at // size] * size + at % size:
            raise EngineFault(f"{rid}: slot {slot} at position {at} is not in its table")
    return table
