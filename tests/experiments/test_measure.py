"""What is kept of a run: Little's law where it can fail, quantiles, the course, the warm-up."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from tests.experiments.lab import PARTS, write

from mainspring.core.config import Depth
from mainspring.plugins.config_file import toml
from mainspring.plugins.experiments import spec
from mainspring.plugins.experiments.arms import make
from mainspring.plugins.experiments.measure import course, little_error, measure, quantiles
from mainspring.plugins.experiments.simulated import SimulatedClock, capacity
from mainspring.plugins.experiments.spec import ExperimentSpec
from mainspring.plugins.experiments.workload import at_rate
from mainspring.plugins.settings import Config
from mainspring.plugins.simulation.play import configure, play
from mainspring.plugins.simulation.records import Run, StepRecord
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.workloads.scenario import Scenario, scenario


def made(name: str = "S1", rate: float = 30.0) -> Scenario:
    return at_rate(scenario(name, "tiny", 1, **({"trees": 2} if name == "S10" else {"num_requests": 40})), rate)


def played(some: Scenario, **scheduler: object) -> Run:
    config = configure(Config(), some)
    table = msgspec.structs.replace(config.scheduler, **{"depth": 1, **scheduler})
    step = StepForm(form="linear", c0=0.0125, c1=4.3e-5, c2=2.3e-5, c3=8.7e-8)
    return play(msgspec.structs.replace(config, scheduler=table), some, step, 1)


@pytest.mark.parametrize("name", ["S1", "S5", "S10"])
def test_littles_law_holds_for_what_was_played(name: str) -> None:
    error = little_error(played(made(name)))
    assert error is not None and error < 0.005


@pytest.mark.parametrize("depth", get_args(Depth))
def test_littles_law_holds_at_any_depth(tmp_path: Path, depth: Depth) -> None:
    """The host counts when it plans, which with a step in flight is one step before the launch."""
    experiment = spec.read(write(tmp_path, arms=f"[config.scheduler]\ndepth = {toml(depth)}\n{PARTS['arms']}"))
    some = made("S5")
    run, _, _, counted_at = SimulatedClock(experiment).play(make(experiment, some)["fcfs"], some, 1, "pair")
    error = little_error(run, counted_at)
    assert error is not None and error < 1e-9


def test_littles_law_sees_a_request_that_was_lost_or_counted_twice() -> None:
    """Waiting and running as the host counted them, one request fewer in the records, one more, and late by a half."""
    run = played(made(rate=60.0))
    longest = max(range(40), key=lambda number: run.requests[number].e2e_s)
    fewer = tuple(one for one in run.requests if one.number != longest)
    twice = (*run.requests, run.requests[longest])
    late = tuple(msgspec.structs.replace(one, finished_s=(one.finished_s or 0) + one.e2e_s / 2) for one in run.requests)
    for wrong in (fewer, twice, late):
        error = little_error(msgspec.structs.replace(run, requests=wrong))
        assert error is not None and error > 0.02
    assert little_error(msgspec.structs.replace(run, steps=())) is None


def test_the_warm_up_is_played_and_not_measured() -> None:
    some = made()
    run = played(some)
    cold, warm = (measure(run, some, ExperimentSpec(primary="ttft_mean", warmup=share)) for share in (0.0, 0.5))
    late = [one.ttft_s for one in run.requests if one.arrival_s >= some.rows[-1].arrival_s * 0.5]
    assert warm["ttft_mean"] == pytest.approx(sum(late) / len(late))
    assert cold["ttft_mean"] != warm["ttft_mean"]


def test_capacity_is_the_rate_of_the_middle() -> None:
    """Forty requests that end one per second, the first and the last ones slowly."""
    ends = [*(number * 5.0 for number in range(4)), *(20.0 + number for number in range(32)), 100, 200, 300, 400]
    requests = tuple(
        msgspec.structs.replace(one, finished_s=float(end))
        for one, end in zip(played(made()).requests, ends, strict=True)
    )
    assert capacity(Run(clock="sim", requests=requests, steps=())) == pytest.approx(1.0)
    assert math.isnan(capacity(Run(clock="sim", requests=requests[:1], steps=())))


def test_quantiles_keep_the_extremes() -> None:
    assert quantiles([1.0, 2.0], 200) == [1.0, 2.0]
    assert quantiles([float(number) for number in range(1001)], 5) == [0.0, 250.0, 500.0, 750.0, 1000.0]


def test_the_course_is_the_mean_of_the_steps_in_each_stretch() -> None:
    steps = tuple(
        StepRecord(number, float(number), 1.0, 10 * number, number, 0, 0.0, 1, number, 0, 0.0) for number in range(4)
    )
    assert [(bin_.at, bin_.prefill, bin_.decode) for bin_ in course(steps, 2)] == [(0.0, 5.0, 0.5), (2.0, 25.0, 2.5)]
    assert course(()) == []
