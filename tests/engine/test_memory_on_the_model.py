"""The real model on a pool that is far too small, with everything an allocator does: whatever is shared, forked,
evicted, swapped or computed again, greedy float32 output is that of isolated runs (B-06, B-08, B-09).

The isolated runs are transformers' checked-in ones.  Greedy decoding goes on where it was: a prompt made of a
reference's prompt and the first of its output ids must be answered with the ids that follow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.engine.loaded import SWAP, Loaded, config, outputs
from tests.support import one_second

from mainspring.core.messages import SamplingParams, Submit
from mainspring.plugins.settings import SchedulerConfig
from mainspring.plugins.simulator import Simulator

pytestmark = pytest.mark.slow
CASES = json.loads((Path(__file__).parents[1] / "golden" / "greedy_reference.json").read_text())["cases"]
CHOSEN = [case for case in CASES if 11 <= len(case["prompt_ids"]) <= 26][:4]
TURNS = (0, 10, 21)  # output ids that are already part of the prompt
NEW_TOKENS = 12


def play(allocator: str, depth: Literal[1, 2], executor: Loaded, num_cases: int, **options: Any) -> dict[str, float]:
    """Turns of some conversations, and a fork of each; every text is compared.  Returns what happened."""
    settings = config(SchedulerConfig(token_budget=24, max_running=6, depth=depth), allocator, **options)
    sim = Simulator(settings, executor, one_second, sampler="standard")
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    first: dict[str, int] = {}  # rid -> index of its first expected id
    case_of = {}
    for index, case in enumerate(CHOSEN[:num_cases]):
        for number, turn in enumerate(TURNS):
            rid = f"{index}.{number}"
            first[rid], case_of[rid] = turn, case
            ids = (*case["prompt_ids"], *case["output_ids"][:turn])
            sim.at(2.0 * index + 9.0 * number, Submit(rid, ids, greedy))
        case_of[f"{index}.fork"] = case
        sim.at(2.0 * index + 6.5, Submit(f"{index}.fork", (), greedy, parent=f"{index}.0"))
    sim.run()
    num_forks = 0
    for emit in sim.emitted:
        for row in emit.rows:
            if row.finish and row.finish.failure:
                assert row.finish.failure.code == "not_found", row  # its parent had been preempted
                del case_of[row.rid]
            elif row.finish and row.rid.endswith("fork"):
                first[row.rid] = row.finish.usage.input - len(case_of[row.rid]["prompt_ids"])
                num_forks += 1
    made = outputs(sim.emitted)
    for rid, case in case_of.items():
        assert made[rid] == case["output_ids"][first[rid] : first[rid] + NEW_TOKENS], rid
    host = sim.actors.host.stats()
    assert host["policy_faults"] == 0
    pool = sim.actors.allocator
    assert pool.free_blocks == pool.num_blocks
    return {**pool.stats(), "preemptions": host.get("preemptions", 0), "forks": num_forks}


def check(allocator: str, depth: Literal[1, 2], options: dict[str, Any], executor: Loaded) -> None:
    seen = play(allocator, depth, executor, 2 if allocator == "none" else 4, **options)
    assert seen["forks"] > 0
    if allocator not in ("contiguous", "none"):  # one reserves a request's most before it starts, one keeps nothing
        assert seen["preemptions"] > 0
    if allocator in ("prefix", "radix"):
        assert seen["evictions"] > 0, seen
        assert seen["hit_tokens"] > 0, seen
    if options:
        assert seen["swap_ins"] > 0, seen


@pytest.mark.parametrize(
    ("allocator", "depth", "options"),
    [("prefix", 2, SWAP), ("radix", 1, {}), ("contiguous", 2, {}), ("none", 1, {})],
)
def test_texts_are_those_of_isolated_runs(
    allocator: str, depth: Literal[1, 2], options: dict[str, Any], executor: Loaded
) -> None:
    check(allocator, depth, options, executor)


@pytest.mark.soak
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("allocator", "options"),
    [("paged", {}), ("prefix", {}), ("prefix", SWAP), ("radix", {}), ("radix", SWAP), ("contiguous", {}), ("none", {})],
)
def test_every_allocator_at_both_depths(
    allocator: str, depth: Literal[1, 2], options: dict[str, Any], executor: Loaded
) -> None:
    check(allocator, depth, options, executor)
