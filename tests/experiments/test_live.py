"""The same experiment on a real kernel: asyncio, the executor's thread, the machine's clock; here without a model."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.experiments.lab import write

from mainspring.core.config import AllocatorConfig
from mainspring.core.messages import StepLaunch
from mainspring.core.policy import Executor
from mainspring.plugins.experiments import spec, workload
from mainspring.plugins.experiments.live import LiveClock
from mainspring.plugins.experiments.measure import facts, little_error
from mainspring.plugins.experiments.played import analyse
from mainspring.plugins.experiments.runner import Runner
from mainspring.plugins.experiments.store import Store
from mainspring.plugins.settings import Config
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.traces.canonical import TraceRow

HEAD = 'name = "live"\nbaseline = "fcfs"\nprimary = "tpot_mean"\nseeds = 5\nclock = "live"\nwarmup = 0.0\n'
ARMS = (
    '[config.sampler]\nuse = "scripted"\n[arms.fcfs.scheduler]\nuse = "fcfs"\n'
    '[arms.narrow.scheduler]\nuse = "fcfs"\nmax_running = 2\n'
)
WORK = '[workload]\nscenario = "S1"\nsize = "tiny"\n[workload.options]\nnum_requests = 10\n'


def fake(config: Config, **more: Any) -> Executor:
    pool = config.allocator
    return FakeExecutor(pool.num_blocks, pool.block_size, 50_000, step_s=0.002, now=time.monotonic, **more)


def test_a_live_run_has_the_arrivals_of_the_scenario_and_loses_nothing(tmp_path: Path) -> None:
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=WORK, load="[load]\nrate = [100.0]\n"))
    made = workload.at_rate(workload.source(experiment)(3), 100.0)
    clock = LiveClock(experiment, fake)
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), clock)
    run, outputs, took_s, counted_at = clock.play(runner.arms["fcfs"], made, 3, "pair")
    assert [one.arrival_s for one in run.requests] == pytest.approx([row.arrival_s for row in made.rows])
    assert [one.output_tokens for one in run.requests] == [row.output_tokens for row in made.rows]
    assert all(
        one.complete and one.submitted_s is not None and one.submitted_s >= one.arrival_s for one in run.requests
    )
    assert all(one.scheduled_s is not None and one.scheduled_s >= one.arrival_s for one in run.requests)
    assert 0 < run.makespan_s < took_s
    error = little_error(run, counted_at)
    assert error is not None and error < 0.005
    assert facts(run, made, experiment.spec).lost == 0
    again, others, *_ = clock.play(runner.arms["narrow"], made, 3, "pair")
    assert others == outputs and len(outputs) == 10, "another order of the same requests says the same"
    assert again.steps != run.steps
    clock.close()


def test_sessions_wait_for_their_parents(tmp_path: Path) -> None:
    work = '[workload]\nscenario = "S10"\nsize = "tiny"\n[workload.options]\ntrees = 2\n'
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=work, load="[load]\nrate = [20.0]\n"))
    made = workload.at_rate(workload.source(experiment)(1), 20.0)
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), LiveClock(experiment, fake))
    run, *_ = runner.clock.play(runner.arms["fcfs"], made, 1, "pair")
    children = [(one, row) for one, row in zip(run.requests, made.rows, strict=True) if row.parent is not None]
    assert children
    for one, row in children:
        assert row.parent is not None
        ended = run.requests[row.parent].finished_s
        assert ended is not None and one.arrival_s >= ended + row.delay_s - 1e-9


def test_what_comes_at_one_moment_is_seen_by_one_plan(tmp_path: Path) -> None:
    """Roots that are due together, and children whose parents have ended together, as in virtual time."""
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=WORK, load="[load]\nrate = [inf]\n"))
    made = workload.at_rate(workload.source(experiment)(1), float("inf"))
    root = TraceRow(arrival_s=0.0, input_tokens=20, output_tokens=4)
    child = msgspec.structs.replace(root, parent=0, delay_s=0.01)
    made = msgspec.structs.replace(made, rows=(root, root, child, msgspec.structs.replace(child, parent=1)))
    clock = LiveClock(experiment, fake)
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), clock)
    run, *_ = clock.play(runner.arms["fcfs"], made, 1, "pair")
    assert [step.batch for step in run.steps] == [2] * 8
    assert run.requests[2].arrival_s == run.requests[3].arrival_s
    clock.close()


def test_a_live_experiment_ends_in_a_verdict_or_says_why_not(tmp_path: Path) -> None:
    """The generator may be late on a busy machine: then there is no verdict, and the report says so."""
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=WORK, load="[load]\nrate = [inf]\n"))
    clock = LiveClock(experiment, fake)
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), clock)
    report, _ = analyse(runner, runner.run(), {})
    arm = report.levels[0].arms[0]
    assert report.clock == "live" and report.complete and arm.pairs == 5
    primary = arm.effects[0]
    assert primary.change is not None
    assert (primary.verdict == "refused") == bool(arm.checks)
    assert all(check.startswith(("fcfs: ", "narrow: ")) for check in arm.checks)
    clock.close()


def test_an_executor_is_loaded_once_and_closed_at_the_end(tmp_path: Path) -> None:
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=WORK, load="[load]\nrate = [inf]\n"))
    made_for: list[int] = []
    closed: list[bool] = []

    class Counted(FakeExecutor):
        def close(self) -> None:
            closed.append(True)

    def make(config: Config) -> Executor:
        made_for.append(config.scheduler.max_running)
        return Counted(config.allocator.num_blocks, config.allocator.block_size, 50_000)

    clock = LiveClock(experiment, make)
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), clock)
    made = workload.at_rate(runner.first, float("inf"))
    for arm in ("fcfs", "narrow", "fcfs", "narrow"):
        clock.play(runner.arms[arm], made, 0, "pair")
    assert sorted(made_for) == [2, 32] and not closed
    clock.close()
    assert len(closed) == 2


def test_a_late_generator_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody blocks the event loop for 200 ms: arrivals in that time are submitted late, and the lag says so."""
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=WORK, load="[load]\nrate = [60.0]\n"))
    made = workload.at_rate(workload.source(experiment)(0), 60.0)
    loops: list[asyncio.AbstractEventLoop] = []

    def block(launch: StepLaunch) -> None:
        if launch.step == 2 and loops:
            loops[-1].call_soon_threadsafe(time.sleep, 0.2)

    clock = LiveClock(experiment, lambda config: fake(config, on_step=block))
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), clock)
    original = clock._run

    async def spied(*arguments: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return await original(*arguments)

    monkeypatch.setattr(clock, "_run", spied)
    run, *_ = clock.play(runner.arms["fcfs"], made, 0, "pair")
    seen = facts(run, made, experiment.spec)
    assert seen.lag_p99_s > 0.01
    assert "the generator was late" in seen.late
    clock.close()


def test_an_answer_that_the_model_ends_by_itself_is_complete(tmp_path: Path) -> None:
    """``forced = false``: the end id comes as the third token of every other request."""
    work = WORK.replace("[workload.options]", "forced = false\n[workload.options]")
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=work, load="[load]\nrate = [inf]\n"))
    lengths: dict[str, int] = {}

    def script(rid: str, length: int, checksum: int) -> int:
        first = lengths.setdefault(rid, length)
        return 0 if length == first + 2 and int(rid[1:]) % 2 else 20 + checksum % 1000

    clock = LiveClock(experiment, lambda config: fake(config, script=script))
    runner = Runner(experiment, Store(tmp_path / "out", experiment, False), clock)
    made = workload.at_rate(runner.first, float("inf"))
    run, *_ = clock.play(runner.arms["fcfs"], made, 0, "pair")
    ended = [one for one in run.requests if one.reason == "stop"]
    assert ended and all(one.complete and one.output_tokens == 3 for one in ended)
    assert facts(run, made, experiment.spec).lost == 0
    clock.close()


def test_an_executor_with_other_host_memory_is_another(tmp_path: Path) -> None:
    experiment = spec.read(write(tmp_path, head=HEAD, arms=ARMS, workload=WORK, load="[load]\nrate = [inf]\n"))
    clock = LiveClock(experiment, fake)

    def config(**options: Any) -> Config:
        return Config(allocator=AllocatorConfig(use="paged", num_blocks=64, options=options))

    assert clock.executor(config()) is clock.executor(config())
    assert clock.executor(config()) is not clock.executor(config(host_blocks=8))
    clock.close()
