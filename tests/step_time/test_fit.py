"""Forms and fits of step time: planted coefficients come back, errors are of steps that were not seen."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.core.config import AllocatorConfig, SamplerConfig
from mainspring.core.errors import ConfigError
from mainspring.core.messages import GrantedRow, StepLaunch, StepResult
from mainspring.core.registry import Registry
from mainspring.plugins.executors.kept import KeptExecutor
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.step_time import PolicyCost, StepForm, features_of, live_turns, load
from mainspring.plugins.step_time.calibrate import calibrate, grid
from mainspring.plugins.step_time.features import Features
from mainspring.plugins.step_time.files import ClassError, StepTimeFile, Validation, dump, ready_made
from mainspring.plugins.step_time.fit import FORMS, by_class, choose, fit, held_out_errors, nnls
from mainspring.plugins.step_time.turn_cost import fit_turns
from mainspring.plugins.testing.fake_executor import FakeExecutor


def row(start: int, count: int, samples: bool = True) -> GrantedRow:
    return GrantedRow("r", start, count, None, samples, (), ())


def test_features_by_hand() -> None:
    rows = [row(0, 100, False), row(50, 10), row(299, 1), row(9, 1), row(4, 1, False)]
    assert features_of(rows, (8,)) == Features(100 + 10 + 1 + 8, 2, 300 + 10, 100 * 50 + 10 * 55 + 1 * 4.5 + 32)
    assert features_of(()) == Features(0, 0, 0, 0)


def test_forms_by_hand() -> None:
    step = Features(100, 10, 2000, 5000)
    linear = StepForm(form="linear", c0=1, c1=0.1, c2=0.2, c3=0.001, c4=0.0001)
    assert linear(step) == pytest.approx(1 + 10 + 2 + 2 + 0.5)
    floor = StepForm(form="max", c0=1, c1=0.1, c2=0.2, c3=0.001, c4=0.0001, floor=20)
    assert floor(step) == pytest.approx(1 + 20 + 2 + 2 + 0.5)
    assert floor(step._replace(prefill=390)) == pytest.approx(1 + 40 + 2 + 2 + 0.5)
    pieces = StepForm(form="piecewise", c0=1, knots=(0.0, 50.0, 100.0), slopes=(0.5, 0.0, 2.0))
    assert [pieces(Features(n, 0, 0, 0)) for n in (0, 20, 50, 90, 110)] == [1, 11, 26, 26, 46]
    assert pieces.many(np.asarray([[20.0, 0, 0, 0], [50, 60, 0, 0]])).tolist() == [11, 46]


def steps(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    rng = np.random.default_rng(seed)
    prefill = np.where(rng.random(count) < 0.6, rng.integers(1, 2000, count), 0)
    decode = np.where(rng.random(count) < 0.8, rng.integers(0, 64, count), 0)
    decode[(prefill + decode) == 0] = 1
    kv = decode * rng.integers(10, 1000, count)
    attention = prefill * rng.integers(10, 2000, count)
    return np.stack([prefill, decode, kv, attention], axis=1).astype(np.float64)


TRUE = {
    "linear": StepForm(form="linear", c0=0.012, c1=4e-5, c2=3e-5, c3=1e-7, c4=1e-9),
    "max": StepForm(form="max", c0=0.002, c1=1e-4, c2=3e-5, c3=1e-7, c4=1e-9, floor=0.05),
    "piecewise": StepForm(form="piecewise", c0=0.01, c3=1e-7, knots=(0.0, 64.0, 1024.0), slopes=(4e-4, 2e-5, 1e-4)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_planted_form_is_found_again(form: Any) -> None:
    features = steps(300, 1)
    seconds = TRUE[form].many(features) * np.exp(0.01 * np.random.default_rng(2).standard_normal(300))
    chosen = choose(features, seconds)
    assert chosen.held_out["all"].median < 0.012 and chosen.held_out["all"].p90 < 0.03
    assert chosen.forms[form] < 0.012
    unseen = steps(200, 3)
    error = np.abs(fit(features, seconds, form).many(unseen) / TRUE[form].many(unseen) - 1)
    assert np.median(error) < 0.01


def test_disturbed_steps_do_not_bend_the_fit() -> None:
    features, rng = steps(300, 1), np.random.default_rng(5)
    seconds = TRUE["linear"].many(features)
    disturbed = seconds * np.where(rng.random(300) < 0.1, 3.0, 1.0)
    error = np.abs(fit(features, disturbed, "linear").many(features) / seconds - 1)
    assert np.median(error) < 0.03


def test_held_out_means_not_seen() -> None:
    """A step like no other is predicted badly as long as its own fold is left out."""
    features, seconds = steps(60, 1), TRUE["linear"].many(steps(60, 1))
    features[7], seconds[7] = (0, 64, 10_000_000, 0), 9.0
    errors = held_out_errors(features, seconds, "linear")
    assert errors[7] > 0.5 and np.median(errors) < 0.01


def test_errors_by_class() -> None:
    features = np.asarray([[10, 0, 0, 50], [0, 3, 30, 0], [0, 5, 30, 0], [10, 2, 30, 50]], np.float64)
    told = by_class(features, np.asarray([0.1, 0.2, 0.4, 0.8]))
    assert told["prefill"] == ClassError(steps=1, median=0.1, p90=0.1)
    assert told["decode"].steps == 2 and told["decode"].median == pytest.approx(0.3)
    assert told["mixed"].steps == 1 and told["all"].steps == 4


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(6, 40))
def test_nnls_meets_its_optimality_conditions(seed: int, columns: int, rows: int) -> None:
    """Karush-Kuhn-Tucker: x >= 0, the gradient <= 0 everywhere and 0 where x > 0."""
    rng = np.random.default_rng(seed)
    matrix, target = (
        rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-6, 6, columns),
        rng.standard_normal(rows),
    )
    x = nnls(matrix, target)
    gradient = matrix.T @ (target - matrix @ x) / np.linalg.norm(matrix, axis=0)
    assert (x >= 0).all()
    assert (gradient < 1e-7).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-7


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_comes_back(tmp_path: Path) -> None:
    made = StepTimeFile(
        machine='a "machine"',
        model="m",
        source="s",
        step=TRUE["piecewise"],
        validation=Validation(
            method="x", held_out={"all": ClassError(steps=3, median=0.5, p90=1.0)}, forms={"max": 0.25}
        ),
        policy_cost={"fair": PolicyCost(a_us=1.5, c_us=2.0), "default": PolicyCost(b_us=4.0)},
        details={"two words": "x"},
    )
    file = tmp_path / "made.toml"
    file.write_text(dump(made))
    assert load(file) == made
    assert made.cost_of("fair").seconds(10, 100) == pytest.approx(201.5e-6)
    assert made.cost_of("fcfs").seconds(10, 100) == pytest.approx(40e-6)


def test_ready_made_files_load_and_say_where_they_are_from() -> None:
    assert len(ready_made()) >= 5
    for name in ready_made():
        made = load(name)
        assert made.source and made.machine and made.validation.method
        assert made.step(Features(128, 8, 4000, 8192)) > 0.001


def test_what_is_wrong_with_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rtx-4090_llama-3\.1-8b"):
        load("rtx-4090_lama-3.1-8b")
    file = tmp_path / "bad.toml"
    file.write_text(
        'machine = "x"\nmodel = "x"\nsource = "x"\n[step]\nform = "quadratic"\n[validation]\nmethod = "x"\n'
    )
    with pytest.raises(ConfigError, match=r"bad\.toml.*step\.form"):
        load(file)


# --- calibrate -------------------------------------------------------------------------------------------------------


def test_the_grid_separates_what_it_measures() -> None:
    points = grid(512, 256, 2048, 40_000, 16)
    alone = [point for point in points if not point.contexts]
    decode = [point for point in points if not point.prompts]
    assert {count for point in alone for count, _ in point.prompts} >= {16, 32, 64, 128, 256, 512}
    assert {len(point.contexts) for point in decode} >= {1, 2, 4, 8, 16, 32, 64}
    assert sum(bool(point.prompts and point.contexts) for point in points) > 15
    assert len(points) == len(set(points))
    with pytest.raises(ConfigError, match=r"executor\.memory"):
        grid(512, 256, 2048, 100, 16)


class Timed(FakeExecutor):
    """Says that a step took what a formula says."""

    def execute(self, launch: StepLaunch, sample: Any) -> StepResult:
        result = super().execute(launch, sample)
        return StepResult(result.step, result.rids, result.token_ids, (), 0.0, TRUE["linear"](features_of(launch.rows)))


def test_calibrate_finds_the_formula_behind_an_executor() -> None:
    config = Config(
        scheduler=SchedulerConfig(token_budget=128, max_running=32),
        allocator=AllocatorConfig(block_size=16),
        sampler=SamplerConfig(use="scripted"),
    )
    fake = Timed(num_blocks=1200, block_size=16, max_context=400)
    made = calibrate(config, Registry(), 1, ["fcfs"], executor=fake)
    assert made.validation.held_out["all"].median < 1e-3
    assert set(made.validation.held_out) == {"all", "prefill", "decode", "mixed"}
    for step in (Features(100, 0, 0, 5000), Features(0, 20, 4000, 0)):
        assert made.step(step) == pytest.approx(TRUE["linear"](step), rel=0.01)
    assert set(made.policy_cost) == {"fcfs", "default"} and made.cost_of("mine") == made.cost_of("fcfs")
    assert load_again(made) == made


def test_calibrate_keeps_to_the_pool_whatever_the_size_of_blocks() -> None:
    """64 sequences of 32 tokens take 64 blocks, of 16 tokens or of 64."""
    used: set[int] = set()

    class Watched(Timed):
        def execute(self, launch: StepLaunch, sample: Any) -> StepResult:
            used.update(block for row in launch.rows for block in row.block_table)
            return super().execute(launch, sample)

    config = Config(
        scheduler=SchedulerConfig(token_budget=128, max_running=64),
        allocator=AllocatorConfig(block_size=64),
        sampler=SamplerConfig(use="scripted"),
    )
    calibrate(config, Registry(), 1, ["fcfs"], executor=Watched(num_blocks=40, block_size=64, max_context=400))
    assert 30 < max(used) < 40


def load_again(made: StepTimeFile) -> StepTimeFile:
    """Through the text of its file, whose numbers have six digits."""
    import tomllib

    import msgspec

    again = msgspec.convert(tomllib.loads(dump(made)), StepTimeFile)
    close, wanted = ([form.c0, form.c1, form.c2, form.c3, form.c4] for form in (again.step, made.step))
    assert close == pytest.approx(wanted, rel=1e-5)
    return msgspec.structs.replace(again, step=made.step, validation=made.validation, policy_cost=made.policy_cost)


def test_turns_cost_something_and_more_with_more_requests() -> None:
    cost = fit_turns(Registry(), ["fcfs"])["fcfs"]
    assert cost.a_us + cost.b_us > 0
    assert cost.seconds(256, 0) > cost.seconds(1, 0)


def test_processor_time_is_of_one_thread() -> None:
    with pytest.raises(ConfigError, match=r"executor\.threads = 0"):
        calibrate(Config(), Registry(), executor=Timed(), processor_time=True)


class OnTime(FakeExecutor):
    """Steps of 2 ms on the machine's clock."""

    def __init__(self) -> None:
        super().__init__(num_blocks=1200, block_size=16, max_context=400, step_s=0.002, now=time.monotonic)


def test_live_turns_cost_more_than_the_host_alone_and_leave_the_executor_open() -> None:
    config = Config(scheduler=SchedulerConfig(token_budget=128, max_running=8), sampler=SamplerConfig(use="scripted"))
    fake = KeptExecutor(OnTime())
    extra = live_turns.beyond(config, Registry(), fake, 1200 * 16)
    assert 0 < extra.seconds(1, 0) < 1 and extra.c_us == 0
    both = PolicyCost(a_us=1, b_us=2, c_us=3).plus(extra)
    assert both.seconds(4, 5) == pytest.approx(24e-6 + extra.seconds(4, 5))
