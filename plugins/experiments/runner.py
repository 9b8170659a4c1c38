"""Plays an experiment: capacity first, then pairs on equal arrivals in random order, each with its A/A control.

What is in the store is not played again, so an interrupted experiment goes on where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple, Protocol

from ...core.messages import FinishReason
from ..workloads.metrics import Alone
from ..workloads.scenario import Scenario
from . import arms as arms_of
from . import workload
from .arms import Arm
from .measure import Summary, metrics_of, summarise
from .simulated import Played, capacity
from .spec import Experiment
from .statistics import paired
from .store import Store

PAIR, CONTROL, REPEAT = "pair", "control", "repeat"


class Clock(Protocol):
    """Where runs take place: ``SimulatedClock`` or ``LiveClock``."""

    clock: str
    description: dict[str, str]
    content: bytes  # further content that its runs depend on, such as that of a file of coefficients

    def play(self, arm: Arm, made: Scenario, seed: int, role: str) -> Played: ...

    def alone(self, arm: Arm) -> Alone | None:
        """Seconds of a request alone on the idle engine, if that can be said."""

    def close(self) -> None: ...


class Level(NamedTuple):
    """One load level: ``rate`` of roots per second."""

    label: str
    rate: float


class Task(NamedTuple):
    """One run that the experiment needs."""

    level: Level
    role: str
    seed: int
    arm: str


class Runner:
    """``run`` plays what is missing; the results are in the store."""

    def __init__(
        self, experiment: Experiment, store: Store, clock: Clock, progress: Callable[[str], None] = lambda _line: None
    ) -> None:
        self.experiment, self.store, self.clock, self._progress = experiment, store, clock, progress
        self.source = workload.source(experiment)
        self.first = self.source(experiment.spec.seed_list[0])
        self.arms = arms_of.make(experiment, self.first)
        for metric in metrics_of(experiment.spec, self.first):
            _check_class(experiment, metric, self.first)
        self._started, self._took_s, self._played, self._left = time.monotonic(), 0.0, 0, 0

    def levels(self) -> list[Level]:
        """Load levels, with the capacity measured if they are shares of it."""
        load = self.experiment.spec.load
        if load.rate:
            return [Level("all at once" if math.isinf(rate) else f"{rate:g} per s", rate) for rate in load.rate]
        most = self.store.state.capacity
        if most is None:
            most = self._capacity()
            self.store.remember_capacity(most)
        share = workload.num_roots(self.first) / len(self.first.rows)
        return [Level(f"rho {rho:g}", rho * most * share) for rho in load.rho]

    def run(self) -> list[Level]:
        """Play everything; returns the levels.  An interrupt leaves the store whole."""
        levels = self.levels()
        self._left = sum(not self._has(task) for level in levels for tasks in self._pairs(level) for task in tasks)
        for level in levels:
            for index, tasks in enumerate(self._pairs(level)):
                for task in tasks:
                    if not self._has(task):
                        if self._out_of_time():
                            self._progress("the budget stop.wall_s is used up")
                            return levels
                        self._play(task, index)
                if self.decided(level, index + 1):
                    self._progress(f"{level.label}: decided after {index + 1} pairs")
                    break
        return levels

    def confidence(self) -> float:
        """Of every interval: shared out over the looks, so that stopping early costs no error."""
        spec = self.experiment.spec
        return 1 - (1 - spec.confidence) / (len(spec.stop.looks) + 1)

    def decided(self, level: Level, pairs: int) -> bool:
        """The stated rule: at a look, every arm's interval of the primary metric leaves out 0."""
        spec = self.experiment.spec
        if pairs not in spec.stop.looks:
            return False
        seeds = spec.seed_list[:pairs]
        base = self._values(level, spec.baseline, seeds)
        effects = [paired(base, self._values(level, arm, seeds), self.confidence()) for arm in spec.others]
        return all(effect is not None and effect.excludes_zero for effect in effects)

    def _values(self, level: Level, arm: str, seeds: tuple[int, ...]) -> list[float]:
        found = (self.store.get(level.label, PAIR, seed, arm) for seed in seeds)
        values = (one.metrics.get(self.experiment.spec.primary) if one else None for one in found)
        return [math.inf if value is None else value for value in values]

    def _pairs(self, level: Level) -> Iterator[list[Task]]:
        """The runs of each pair: all arms on one seed in random order, and the baseline on a seed of its own."""
        spec = self.experiment.spec
        for index, seed in enumerate(spec.seed_list):
            tasks = [Task(level, PAIR, seed, arm) for arm in spec.arms]
            tasks.append(Task(level, CONTROL, seed + workload.FLOOR_OFFSET, spec.baseline))
            Random(f"{spec.name} {level.label} {seed}").shuffle(tasks)
            if index == 0 and spec.clock == "sim":
                tasks.append(Task(level, REPEAT, seed, spec.baseline))
            yield tasks

    def _has(self, task: Task) -> bool:
        return self.store.has(task.level.label, task.role, task.seed, task.arm)

    def _play(self, task: Task, index: int) -> None:
        made = workload.at_rate(self.source(task.seed), task.level.rate)
        arm = self.arms[task.arm]
        role = PAIR if task.role == REPEAT else task.role  # the same noise too
        run, outputs, took_s, counted_at = self.clock.play(arm, made, task.seed, role)
        summary = summarise(
            run,
            made,
            self.experiment.spec,
            level=task.level.label,
            arm=task.arm,
            seed=task.seed,
            role=task.role,
            alone=self.clock.alone(arm),
            outputs=outputs,
            counted_at=counted_at,
            took_s=took_s,
        )
        self.store.put(summary)
        self.store.describe(self.clock.description)
        self._left, self._took_s, self._played = self._left - 1, self._took_s + took_s, self._played + 1
        self._tell(task, index, summary)

    def _tell(self, task: Task, index: int, summary: Summary) -> None:
        spec = self.experiment.spec
        value = summary.metrics.get(spec.primary)
        shown = "not finite" if value is None else f"{value:.4g}"
        what = task.arm if task.role == PAIR else f"{task.arm} ({task.role})"
        left_s = self._left * self._took_s / self._played
        self._progress(
            f"{task.level.label}: pair {index + 1} of {len(spec.seed_list)}: {what}: {spec.primary} {shown}; "
            f"{self._left} runs left, about {left_s:.0f} s"
        )

    def _capacity(self) -> float:
        baseline = self.arms[self.experiment.spec.baseline]
        seed = self.experiment.spec.seed_list[0]
        run, *_ = self.clock.play(baseline, workload.at_rate(self.first, math.inf), seed, PAIR)
        most = capacity(run)
        if lost := [one for one in run.requests if not one.complete and one.reason != FinishReason.DEADLINE]:
            why = next((f", first with {one.code}" for one in lost if one.code), "")
            text = f"{len(lost)} of {len(run.requests)} requests have not got all their tokens{why}"
            raise self.experiment.error(f"load.rho: the capacity of {baseline.name} cannot be measured: {text}")
        if not math.isfinite(most):
            raise self.experiment.error("load.rho: the capacity cannot be measured with so few requests; use load.rate")
        self._progress(f"capacity of {baseline.name}: {most:.3g} requests per second")
        return most

    def _out_of_time(self) -> bool:
        wall_s = self.experiment.spec.stop.wall_s
        return bool(wall_s) and time.monotonic() - self._started > wall_s


def _check_class(experiment: Experiment, metric: str, made: Scenario) -> None:
    """A class that no request has would make a metric of nothing."""
    label = metric.partition("@")[2]
    known = sorted({row.slo for row in made.rows} - {""})
    if label and label not in known:
        raise experiment.error(f"metric {metric!r}: {made.name} has no class {label!r} (valid: {', '.join(known)})")
