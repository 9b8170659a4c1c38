"""Greedy float32 output of the whole engine equals transformers' ``generate``, token for token, on both CPU backends.

Every combination runs on the native kernels (on torch where they cannot be built), and some on torch; ``make soak``
runs all on torch, at both depths.  The reference ids are checked in with the versions that made them
(``tests/golden/make_greedy_reference.py``); four of them are made again here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support import Flights, one_second

from mainspring.core.config import AllocatorConfig, Depth, ExecutorConfig
from mainspring.core.messages import SamplingParams, Submit
from mainspring.core.router import Tap
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.embedded import default_model_path
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.simulator import LinearStepTime, Simulator, StepTime

pytestmark = pytest.mark.slow
REFERENCE = json.loads((Path(__file__).parents[1] / "golden" / "greedy_reference.json").read_text())
CASES = REFERENCE["cases"]
NEW_TOKENS = REFERENCE["new_tokens"]
EXECUTORS: dict[str, type[TorchExecutor]] = {"native": NativeExecutor, "torch": TorchExecutor}


def run(
    arrivals: list[float],
    *,
    token_budget: int = 512,
    block_size: int = 16,
    allocator: str = "prefix",
    num_blocks: int = 0,
    depth: Depth = 1,
    executor: str = "native",
    step_time: StepTime = one_second,
    taps: Sequence[Tap] = (),
) -> Simulator:
    """All cases, each at its virtual arrival time, through scheduler, allocator, sampler and the float32 model."""
    config = Config(
        paranoid=True,
        scheduler=SchedulerConfig(token_budget=token_budget, depth=depth),
        allocator=AllocatorConfig(use=allocator, block_size=block_size, num_blocks=num_blocks or 12_288 // block_size),
        executor=ExecutorConfig(use=executor, dtype="fp32", weights="fp32", kv_dtype="fp32"),
    )
    sim = Simulator(config, EXECUTORS[executor](None, config), step_time, taps=taps, sampler="standard")
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    for index, (case, moment) in enumerate(zip(CASES, arrivals, strict=True)):
        sim.at(moment, Submit(str(index), tuple(case["prompt_ids"]), sampling))
    sim.run()
    outputs: dict[str, list[int]] = {}
    for emit in sim.emitted:
        for row in emit.rows:
            outputs.setdefault(row.rid, []).extend(row.token_ids)
    wrong = [case["kind"] for index, case in enumerate(CASES) if outputs[str(index)] != case["output_ids"]]
    assert not wrong
    assert sim.actors.host.stats()["policy_faults"] == 0
    return sim


def staggered() -> list[float]:
    return [float(3 * index) for index in range(len(CASES))]


def test_the_reference_covers_what_it_should() -> None:
    lengths = [len(case["prompt_ids"]) for case in CASES]
    assert len(CASES) == 32
    assert min(lengths) == 1
    assert max(lengths) >= 650
    assert all(len(case["output_ids"]) == NEW_TOKENS == 64 for case in CASES)


def test_alone() -> None:
    """Each request by itself: the next arrives when the one before has ended."""
    run([1000.0 * index for index in range(len(CASES))])


def together(token_budget: int, block_size: int, executor: str, other_depth: bool = False) -> None:
    """Both depths meet every budget and every block size."""
    kept = "paged" if token_budget == 33 else "prefix"
    depth: Depth = 1 if (block_size == 4) != other_depth else 2
    run(
        staggered(),
        token_budget=token_budget,
        block_size=block_size,
        allocator=kept,
        depth=depth,
        executor=executor,
    )


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("token_budget", [8, 33, 512])
def test_together(token_budget: int, block_size: int) -> None:
    """C-19: staggered arrivals."""
    together(token_budget, block_size, "native")


def test_together_on_torch() -> None:
    together(33, 4, "torch")


@pytest.mark.soak
@pytest.mark.parametrize("other_depth", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("token_budget", [8, 33, 512])
def test_together_on_torch_at_both_depths(token_budget: int, block_size: int, other_depth: bool) -> None:
    together(token_budget, block_size, "torch", other_depth)


@pytest.mark.soak
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("token_budget", [8, 33, 512])
def test_together_at_the_other_depth(token_budget: int, block_size: int) -> None:
    together(token_budget, block_size, "native", other_depth=True)


@pytest.mark.soak
def test_alone_on_torch() -> None:
    run([1000.0 * index for index in range(len(CASES))], executor="torch")


@pytest.mark.parametrize(("depth", "executor"), [(1, "torch"), (2, "native")])
def test_preempted(depth: Depth, executor: str) -> None:
    """A-05: a pool that holds less than half of what is wanted at once."""
    sim = run([0.0] * len(CASES), num_blocks=150, depth=depth, executor=executor)
    assert sim.actors.host.stats()["preemptions"] >= 5


@pytest.mark.parametrize("executor", ["native", "torch"])
def test_planned_ahead_now_and_then(executor: str) -> None:
    """Depth "auto": up to twenty tokens are a short step, which has the next one beside it."""
    flights = Flights()
    arrivals = [0.05 * index for index in range(len(CASES))]
    run(arrivals, depth="auto", executor=executor, step_time=LinearStepTime(0.010, 0.0005), taps=[flights.tap])
    assert min(map(flights.counts.count, (1, 2))) > 30


def test_four_references_made_again() -> None:
    """The checked-in ids are what the installed transformers says today."""
    import torch
    from tests.golden.make_greedy_reference import reference_model

    model: Any = reference_model(default_model_path())
    for case in sorted(CASES, key=lambda case: len(case["prompt_ids"]))[:: len(CASES) // 4][:4]:
        ids = torch.tensor([case["prompt_ids"]])
        end = {"eos_token_id": None, "pad_token_id": 0}
        out = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, **end)
        assert out[0, ids.shape[1] :].tolist() == case["output_ids"], case["kind"]
