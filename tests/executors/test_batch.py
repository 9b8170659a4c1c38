"""A launch as flat arrays, and the checks that protect a backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mainspring.core.errors import EngineFault
from mainspring.core.messages import GrantedRow, StepLaunch
from mainspring.plugins.executors.batch import Limits, build, fill

LIMITS = Limits(vocab_size=100, max_context=64, num_blocks=10, block_size=4)


def row(rid: str = "a", start: int = 0, ids: Any = (1, 2, 3), samples: bool = True, **changes: Any) -> GrantedRow:
    table = changes.pop("block_table", (7, 2, 5))
    count = changes.pop("count", 1 if ids is None else len(ids))
    slots = tuple(table[at // 4] * 4 + at % 4 for at in range(start, start + count) if at // 4 < len(table))
    return GrantedRow(rid, start, count, ids, samples, table, changes.pop("slot_mapping", slots))


def test_arrays_of_a_mixed_step() -> None:
    launch = StepLaunch(
        3,
        (row("a", 3, (1, 2, 3)), row("b", 8, None, block_table=(0, 1, 9)), row("c", 0, (4,), False, block_table=(3,))),
        None,
        padding=(2, 1),
    )
    batch = build(launch, LIMITS)
    assert batch.missing == ((3, "b"),)
    fill(batch, {"b": 42}, LIMITS)
    assert batch.ids.tolist() == [1, 2, 3, 42, 4, 0, 0, 0]
    assert batch.positions.tolist() == [3, 4, 5, 8, 0, 0, 1, 0]
    assert batch.slot_mapping.tolist() == [31, 8, 9, 36, 12, -1, -1, -1]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 5, 7, 8]
    assert batch.context_lens.tolist() == [6, 9, 1, 0, 0]
    assert batch.block_tables.tolist() == [[7, 2, -1], [0, 1, 9], [3, -1, -1], [-1, -1, -1], [-1, -1, -1]]
    assert batch.logits_rows.tolist() == [2, 3]
    assert batch.sampling_rids == ("a", "b")
    assert (batch.num_rows, batch.num_tokens) == (3, 8)
    arrays = (batch.ids, batch.positions, batch.slot_mapping, batch.cu_seqlens, batch.context_lens, batch.block_tables)
    assert {array.dtype for array in (*arrays, batch.logits_rows)} == {np.dtype(np.int32)}


def test_a_step_of_dummies_only() -> None:
    batch = build(StepLaunch(1, (), None, padding=(3,)), LIMITS)
    assert batch.num_tokens == 3
    assert batch.logits_rows.size == 0


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (row(ids=(1, 100)), "a: an id outside the vocabulary of 100"),
        (row(ids=(-1,)), "a: an id outside the vocabulary"),
        (row(ids=None, count=2), "a: a row of 2 without ids"),
        (row(ids=(1, 2), count=3), "a: 2 ids for a row of 3"),
        (row(block_table=(10,)), "a: a block outside the pool of 10"),
        (row(block_table=(-1,)), "a: a block outside the pool of 10"),
        (row(start=10, ids=(1, 2, 3)), "a: 3 blocks for 13 tokens"),
        (row(slot_mapping=(28, 29)), "a: 2 slots for a row of 3"),
        (row(slot_mapping=(28, 29, 31)), "a: slot 31 at position 2 is not in its table"),
        (row(slot_mapping=(28, 29, -1)), "a: slot -1 at position 2"),
        (row(start=62, ids=(1, 2, 3), block_table=tuple(range(10)) * 2), "a: 65 tokens, the context holds 64"),
        (row(start=-1, ids=(1,)), "negative start"),
        (row(ids=(), count=0), "a row without tokens"),
    ],
    ids=lambda value: value[:45] if isinstance(value, str) else "",
)
def test_bad_rows_are_named_before_a_backend_sees_them(bad: GrantedRow, said: str) -> None:
    with pytest.raises(EngineFault, match=said):
        build(StepLaunch(1, (bad,), None), LIMITS)


def test_an_allocator_may_hand_over_any_sequence() -> None:
    tuples, others = row(), row(ids=[1, 2, 3], block_table=[7, 2, 5], slot_mapping=range(28, 31))
    a, b = (build(StepLaunch(1, (one,), None), LIMITS) for one in (tuples, others))
    assert [part.tolist() for part in a.arrays()] == [part.tolist() for part in b.arrays()]


def test_an_id_that_was_sampled_is_no_exception() -> None:
    with pytest.raises(EngineFault, match="a: an id outside the vocabulary of 100"):
        fill(build(StepLaunch(1, (row(start=3, ids=None),), None), LIMITS), {"a": 100}, LIMITS)


def test_an_id_that_nobody_sampled_is_missed() -> None:
    with pytest.raises(EngineFault, match="a: a row without ids, and no id sampled before it"):
        fill(build(StepLaunch(1, (row(start=3, ids=None),), None), LIMITS), {"b": 1}, LIMITS)


def test_what_was_checked_is_no_longer_once_it_is_changed() -> None:
    batch = build(StepLaunch(1, (row(), row("b", 5, (9,), block_table=(0, 1))), None, padding=(9,)), LIMITS)
    checked = batch.checked
    assert checked is not None
    assert (checked.limits, checked.positions) == (LIMITS, 9)
    for array, cut in zip(batch.arrays(), checked.cuts, strict=True):
        assert checked.packed[cut : cut + array.size].tolist() == array.ravel().tolist()
    assert replace(batch, ids=batch.ids + 100).checked is None


def test_two_tokens_never_share_a_slot() -> None:
    with pytest.raises(EngineFault, match="share a slot"):
        build(StepLaunch(1, (row("a"), row("b")), None), LIMITS)
