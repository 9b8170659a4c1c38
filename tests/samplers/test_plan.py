"""The actor half: what a plan holds, and that the table of parameters forgets and reuses correctly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import EngineFault
from mainspring.core.messages import GrantedRow, SamplingParams, Started
from mainspring.samplers.philox import uniforms
from mainspring.samplers.plan import ParamTable


def row(rid: str, start: int, count: int = 1, *, samples: bool = True) -> GrantedRow:
    return GrantedRow(rid, start, count, None, samples, (), ())


def started(rid: str, params: SamplingParams, num_prompt_tokens: int = 4) -> Started:
    return Started(rid, (0,) * num_prompt_tokens, num_prompt_tokens, 0, params)


def test_columns_follow_the_sampling_rows_in_order_with_their_types() -> None:
    table = ParamTable(100, (2,))
    table.put(started("a", SamplingParams(temperature=0.5, top_k=100, top_p=0.9, seed=7)))
    table.put(started("b", SamplingParams(temperature=1e-6, seed=8)))
    table.put(started("c", SamplingParams(top_k=99, min_p=0.25, seed=2**64 - 1)))
    plan = table.plan((row("c", 3), row("a", 0, 2, samples=False), row("b", 9), row("a", 0, 4)))
    assert len(plan) == 3
    kinds = (plan.temperature, plan.top_k, plan.top_p, plan.min_p, plan.uniform, plan.greedy)
    assert [array.dtype for array in kinds] == [np.float32, np.int32, np.float32, np.float32, np.float64, np.bool_]
    assert plan.temperature.tolist() == [1.0, 0.0, 0.5]
    assert plan.top_k.tolist() == [99, 0, 0], "a top_k of the whole vocabulary is off"
    assert plan.top_p.tolist() == [1.0, 1.0, np.float32(0.9)]
    assert plan.min_p.tolist() == [0.25, 0.0, 0.0]
    assert plan.greedy.tolist() == [False, True, False]
    assert not plan.greedy.all()
    assert not plan.has_bans
    first, last = uniforms(np.array([2**64 - 1, 7], np.uint64), np.array([4, 4]))
    assert plan.uniform.tolist() == [first, 0.0, last], "key: the seed, counter: the position of the drawn token"


def test_plans_compare_by_value_so_that_message_streams_can_be_compared() -> None:
    table = ParamTable(100, (2,))
    table.put(started("a", SamplingParams(seed=7, min_tokens=1)))
    assert table.plan((row("a", 3),)) == table.plan((row("a", 3),))
    assert table.plan((row("a", 3),)) != table.plan((row("a", 4),))
    assert table.plan((row("a", 3),)) != table.plan(())


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(top_p=0.0)]
)
def test_whatever_leaves_only_the_best_token_is_greedy(params: SamplingParams) -> None:
    table = ParamTable(100, ())
    table.put(started("a", params))
    plan = table.plan((row("a", 3),))
    assert plan.greedy.all()
    assert plan.temperature.tolist() == [0.0]


def test_c10_c11_bans_are_pairs_of_row_and_id_while_the_minimum_holds() -> None:
    table = ParamTable(100, (2, 7))
    table.put(started("a", SamplingParams(min_tokens=2, stop_token_ids=(7, 50)), 4))
    table.put(started("b", SamplingParams(), 4))
    table.put(started("c", SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=(50,)), 9))
    table.put(started("d", SamplingParams(min_tokens=2, ignore_eos=True), 4))
    plan = table.plan((row("b", 3), row("a", 0, 4), row("c", 9), row("d", 3)))
    assert plan.has_bans
    assert plan.banned_rows.tolist() == [1, 1, 1, 2]
    assert plan.banned_ids.tolist() == [2, 7, 50, 50]
    assert table.plan((row("a", 4),)).banned_ids.tolist() == [2, 7, 50]
    assert not table.plan((row("a", 5), row("c", 10))).has_bans


def test_a_resumed_request_overwrites_its_parameters_and_a_new_one_inherits_nothing() -> None:
    table = ParamTable(100, (2,))
    table.put(started("a", SamplingParams(min_tokens=5, temperature=0.5)))
    table.put(started("a", SamplingParams(min_tokens=5, ignore_eos=True)))
    assert not table.plan((row("a", 3),)).has_bans
    table.put(started("a", SamplingParams(min_tokens=5)))
    table.drop("a")
    table.put(started("b", SamplingParams()))
    plan = table.plan((row("b", 3),))
    assert (plan.has_bans, plan.temperature.tolist()) == (False, [1.0])
    table.check()


def test_a_row_of_an_unknown_request_is_a_fault_that_names_it() -> None:
    table = ParamTable(100, ())
    table.put(started("a", SamplingParams()))
    table.drop("a")
    with pytest.raises(EngineFault, match="'a'"):
        table.plan((row("a", 3),))


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=300))
def test_slots_are_never_lost_or_shared(changes: list[tuple[bool, int]]) -> None:
    table = ParamTable(100, (2,))
    living: dict[str, int] = {}
    for serial, (put, number) in enumerate(changes):
        if put:
            living[f"r{number}"] = serial
            table.put(started(f"r{number}", SamplingParams(seed=1, top_k=2 + serial % 97, min_tokens=serial % 2)))
        else:
            living.pop(f"r{number}", None)
            table.drop(f"r{number}")
    table.check()
    plan = table.plan(tuple(row(rid, 3) for rid in living))
    assert plan.top_k.tolist() == [2 + serial % 97 for serial in living.values()]
    assert plan.banned_rows.tolist() == [at for at, serial in enumerate(living.values()) if serial % 2]


def test_a_greedy_plan_is_kept_until_anything_changes() -> None:
    table, rows = ParamTable(100, (2,)), (row("a", 9), row("b", 5))
    table.put(started("a", SamplingParams(temperature=0.0, min_tokens=3)))
    table.put(started("b", SamplingParams(temperature=0.0)))
    assert table.plan((row("a", 5), row("b", 5))).has_bans, "its end ids are held back at first"
    plan = table.plan(rows)
    assert plan.best_only
    assert not plan.has_bans
    assert table.plan((row("a", 10), row("b", 6))) is plan, "no position matters"
    assert len(table.plan((row("b", 7),))) == 1, "other rows"
    again = table.plan(rows)
    table.put(started("b", SamplingParams(temperature=1.0)))
    assert table.plan(rows).greedy.tolist() == [True, False], "b came back with other parameters"
    assert again == plan
    table.drop("b")
    with pytest.raises(EngineFault, match="never started or is already released"):
        table.plan(rows)
