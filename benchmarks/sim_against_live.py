"""Does virtual time say what the real engine does?  The same requests on both clocks, compared number by number.

First ``mainspring calibrate --set executor.threads=1`` on this machine, then this with its file.  For each pair of
policies and its scenario: the capacity, ``fcfs`` at 0.5 and 0.8 of it, and pairs of runs on equal arrivals at 0.8, all
live (one executor thread, the generator in the event loop's thread).  Before and after each live run a few steps say
how fast the machine is just then (``parts/pace.py``), and virtual time runs at that pace; with ``--own-pace`` at that
of all steps of the run itself, for machines whose speed changes within minutes.  Each live run is a line of
``live.jsonl`` as soon as it has ended, so the whole can be played in parts (``--minutes``) when the machine is idle;
what virtual time says of the same arrivals is played for the report, which is printed at the end.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import NamedTuple

import msgspec
from parts.pace import at_pace, pace

from mainspring.core.registry import Registry
from mainspring.plugins.experiments import arms as arms_of
from mainspring.plugins.experiments import spec as spec_of
from mainspring.plugins.experiments import workload
from mainspring.plugins.experiments.arms import Arm
from mainspring.plugins.experiments.live import LiveClock
from mainspring.plugins.experiments.measure import summarise
from mainspring.plugins.experiments.quality import direction_of
from mainspring.plugins.experiments.simulated import Played, SimulatedClock, capacity
from mainspring.plugins.experiments.spec import Experiment
from mainspring.plugins.experiments.statistics import Interval, paired
from mainspring.plugins.step_time import Features, StepTimeFile, load

#: What the simulation of this machine should keep to; the report marks what is beyond.
LIMITS = {"tpot_mean": 0.10, "e2e_mean": 0.10, "ttft_mean": 0.20}
CAPACITY_LIMIT = 0.05
LIGHT, HEAVY = 0.5, 0.8
PACE_S = 20.0  # two of them take less


class Case(NamedTuple):
    """``policy`` against ``fcfs``, judged by ``primary``; ``options`` make so many requests of the scenario."""

    policy: str
    primary: str
    options: str


CASES = {
    "S8": Case("fair", "ttft_p99@polite", "num_requests = {0}"),
    "S1": Case("prefix_priority", "ttft_mean", "num_requests = {0}"),
    "S9": Case("deadline", "goodput@interactive", "num_requests = {1}\nbatch_requests = {2}"),
    "S6": Case("shortest", "ttft_mean@short", "num_requests = {0}"),
}

TEMPLATE = """
baseline = "fcfs"
primary = "{case.primary}"
metrics = ["ttft_mean", "tpot_mean", "e2e_mean"]
seeds = 5
clock = "{clock}"
step_time = "{steps}"
[config.executor]
use = "{executor}"
threads = 1
[config.scheduler]
depth = 1
[workload]
scenario = "{name}"
size = "tiny"
[workload.options]
{options}
[load]
rate = [inf]
[arms.fcfs.scheduler]
use = "fcfs"
[arms.other.scheduler]
use = "{case.policy}"
"""


class Task(NamedTuple):
    """One run; ``rho`` infinite: everything at once."""

    scenario: str
    rho: float
    seed: int
    arm: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A live run.  ``rho`` None and ``capacity`` in requests per second: everything came at once.

    ``turn_us``: median time from the end of a step to the start of the next while there was work.  ``pace``: of the
    machine, mean of before and after.  ``own_pace``: measured by predicted time of all its steps.
    """

    scenario: str
    rho: float | None
    rate: float | None
    seed: int
    arm: str
    metrics: dict[str, float | None]
    failed: list[str]
    took_s: float
    turn_us: float
    pace: float
    own_pace: float
    capacity: float | None = None

    @property
    def task(self) -> Task:
        return Task(self.scenario, math.inf if self.rho is None else self.rho, self.seed, self.arm)


def tasks(name: str, pairs: int) -> Iterator[Task]:
    """What is played live for a scenario, in this order."""
    yield Task(name, math.inf, 0, "fcfs")
    yield Task(name, LIGHT, 0, "fcfs")
    for seed in range(pairs):
        both = ["fcfs", "other"]
        Random(f"{name} {seed}").shuffle(both)
        yield from (Task(name, HEAVY, seed, arm) for arm in both)
    yield from (Task(name, LIGHT, seed, "fcfs") for seed in range(1, pairs))


class Bench:
    """One scenario on either clock."""

    def __init__(self, name: str, clock: str, args: argparse.Namespace) -> None:
        path = args.out / f"{name}_{clock}.toml"
        self._own_pace: bool = args.own_pace
        few = args.requests * 3 // 5  # of the interactive ones; the others are the batch
        options = CASES[name].options.format(args.requests, few, args.requests - few)
        steps = args.steps.resolve() if args.steps.suffix == ".toml" else args.steps
        fields = {"steps": steps, "executor": args.executor}
        text = TEMPLATE.format(case=CASES[name], name=name, clock=clock, options=options, **fields)
        path.write_text(text, encoding="utf-8")
        self.experiment: Experiment = spec_of.read(path)
        self._source = workload.source(self.experiment)
        self._arms: dict[str, Arm] = arms_of.make(self.experiment, self._source(0))
        self.clock: LiveClock | SimulatedClock
        self.clock = LiveClock(self.experiment) if clock == "live" else SimulatedClock(self.experiment)

    def pace(self, machine: StepTimeFile) -> float:
        """Of this machine now, live only."""
        assert isinstance(self.clock, LiveClock)
        config = self._arms["fcfs"].config
        return pace(self.clock.executor(config), config, Registry(), machine)

    def simulate(self, line: Line, machine: StepTimeFile) -> Line:
        """The same run in virtual time, at the pace of then: its own, or that of before and after."""
        assert isinstance(self.clock, SimulatedClock)
        self.clock.machine = at_pace(machine, line.own_pace if self._own_pace else line.pace)
        return self.play(line.task, line.rate or math.inf)[0]

    def play(self, task: Task, rate: float) -> tuple[Line, Played]:
        made = workload.at_rate(self._source(task.seed), rate)
        played = self.clock.play(self._arms[task.arm], made, task.seed, "pair")
        summary = summarise(
            played.run,
            made,
            self.experiment.spec,
            level="",
            arm=task.arm,
            seed=task.seed,
            role="pair",
            counted_at=played.counted_at,
        )
        wanted = (self.experiment.spec.primary, *LIMITS)
        line = Line(
            scenario=task.scenario,
            rho=None if math.isinf(task.rho) else task.rho,
            rate=None if math.isinf(rate) else rate,
            seed=task.seed,
            arm=task.arm,
            metrics={metric: summary.metrics[metric] for metric in wanted},
            failed=[*summary.facts.failed, *filter(None, [summary.facts.late])],
            took_s=round(played.took_s, 2),
            turn_us=round(turn_us(played), 1),
            pace=1.0,
            own_pace=1.0,
            capacity=capacity(played.run) if math.isinf(task.rho) else None,
        )
        return line, played


def turn_us(played: Played) -> float:
    """Median microseconds between steps while somebody ran on."""
    steps = played.run.steps
    gaps = [
        later.launched_s - step.launched_s - step.seconds
        for step, later in pairwise(steps)
        if later.decode and later.launched_s - step.launched_s - step.seconds < 0.1
    ]
    return median(gaps) * 1e6 if gaps else 0.0


def own_pace(played: Played, machine: StepTimeFile) -> float:
    """Measured by predicted time of all steps."""
    steps = played.run.steps
    predicted = sum(machine.step(Features(step.prefill, step.decode, step.kv, step.attention)) for step in steps)
    return sum(step.seconds for step in steps) / predicted


def measure(args: argparse.Namespace, lines: list[Line], machine: StepTimeFile) -> None:
    """Play what is missing, as far as the time goes; ``lines`` grows, and so does the file."""
    started, longest = time.monotonic(), 0.0
    for name in args.scenarios:
        bench: Bench | None = None
        for task in tasks(name, args.pairs):
            if any(line.task == task for line in lines):
                continue
            if args.minutes and time.monotonic() - started + longest > args.minutes * 60:
                print("out of time: the rest is left for another call", file=sys.stderr)
                return
            bench = bench or Bench(name, "live", args)
            most = next((line.capacity for line in lines if line.scenario == name and line.capacity), None)
            before = bench.pace(machine)
            line, played = bench.play(task, task.rho * most if most else math.inf)
            paces = {"pace": (before + bench.pace(machine)) / 2, "own_pace": own_pace(played, machine)}
            line = msgspec.structs.replace(line, **{name: round(pace, 4) for name, pace in paces.items()})
            longest = max(longest, line.took_s + PACE_S)
            lines.append(line)
            with (args.out / "live.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
            what = f"{name} rho {task.rho:g} seed {task.seed} {task.arm}"
            said = f"{what}: {line.took_s:.0f} s, pace {line.own_pace:.3f}, before and after {line.pace:.3f}"
            print(said, file=sys.stderr, flush=True)
        if bench is not None:
            bench.clock.close()


def report(args: argparse.Namespace, lines: list[Line], machine: StepTimeFile) -> None:
    """The tables: absolute figures of ``fcfs``, then what both clocks say of the other policy."""
    print("| scenario | load | figure | simulated | live | error |\n| --- | --- | --- | --- | --- | --- |")
    signs = list[str]()
    for name in args.scenarios:
        live = [line for line in lines if line.scenario == name]
        bench = Bench(name, "sim", args)
        sim = [bench.simulate(line, machine) for line in live]
        for one, two in zip(sim, live, strict=True):
            if one.capacity and two.capacity:
                print(_row(name, "all at once", "capacity", one.capacity, two.capacity, CAPACITY_LIMIT))
        for rho in (LIGHT, HEAVY):
            both = [pair for pair in zip(sim, live, strict=True) if pair[1].task[1:] == (rho, pair[1].seed, "fcfs")]
            for metric, limit in LIMITS.items() if both else ():
                simulated, measured = (_mean([pair[side] for pair in both], metric) for side in (0, 1))
                print(_row(name, f"{rho:g} ({len(both)} runs)", metric, simulated, measured, limit))
        signs.append(_sign(name, sim, live))
    print("\n| scenario | policy | metric | pairs | simulated | live | |\n| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(signs))
    turns = [line.turn_us for line in lines]
    paces = [line.own_pace if args.own_pace else line.pace for line in lines]
    bad = [f"{line.task}: {line.failed[0]}" for line in lines if line.failed]
    print(f"\n{len(lines)} live runs at paces from {min(paces):.2f} to {max(paces):.2f}", end="; ")
    print(f"between steps {min(turns):.0f} to {max(turns):.0f} us (medians of runs).")
    print("\n".join(["Failed checks:", *bad] if bad else ["No check failed."]))


def _row(name: str, where: str, metric: str, simulated: float, measured: float, limit: float) -> str:
    error = simulated / measured - 1
    beyond = f" (beyond {limit:.0%})" if abs(error) > limit else ""
    return f"| {name} | {where} | {metric} | {simulated:.4g} | {measured:.4g} | {error:+.1%}{beyond} |"


def _mean(lines: list[Line], metric: str) -> float:
    values = [line.metrics[metric] for line in lines]
    return fmean(math.nan if value is None else value for value in values)


def _sign(name: str, sim: list[Line], live: list[Line]) -> str:
    """What both clocks say of the primary metric at the heavy load."""
    case, effects, count = CASES[name], list[Interval | None](), 0
    for lines in (sim, live):
        found = {line.task: line.metrics[case.primary] for line in lines}
        seeds = [task.seed for task in found if task[1:] == (HEAVY, task.seed, "fcfs")]
        seeds = [seed for seed in seeds if Task(name, HEAVY, seed, "other") in found]
        count = len(seeds)
        values = [[found[Task(name, HEAVY, seed, arm)] for seed in seeds] for arm in ("fcfs", "other")]
        plain = [[math.inf if value is None else value for value in some] for some in values]
        effects.append(paired(plain[0], plain[1], 0.95))
    one, two = effects
    if one is None or two is None:
        verdict = "too few pairs"
    elif not two.excludes_zero:
        verdict = "live is undecided"
    else:
        same = (one.mean > 0) == (two.mean > 0)
        better = (two.mean < 0) == (direction_of(case.primary) == "lower")
        verdict = f"{'same sign' if same else 'OTHER SIGN'} ({'better' if better else 'worse'})"
        verdict += f", log ratios differ by {abs(one.mean - two.mean):.2f}" if one.scale == "ratio" == two.scale else ""
    return f"| {name} | {case.policy} | {case.primary} | {count} | {_text(one)} | {_text(two)} | {verdict} |"


def _text(effect: Interval | None) -> str:
    if effect is None:
        return "-"
    mean, low, high = (effect.shown(value) for value in (effect.mean, effect.low, effect.high))
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=Path, help="file of mainspring calibrate, made on this machine")
    parser.add_argument("--out", type=Path, default=Path("build/sim_against_live"))
    parser.add_argument("--scenarios", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--executor", default="native")
    parser.add_argument("--minutes", type=float, default=0.0, help="start no run that would end later (default: all)")
    parser.add_argument("--own-pace", action="store_true", help="take a run's pace from its own steps")
    parser.add_argument("--report", action="store_true", help="play nothing live: only report on what there is")
    args = parser.parse_args()
    if args.steps is None:  # as one of all benchmarks: there is nothing to compare with
        print("no --steps FILE: run `mainspring calibrate` on this machine first")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    kept, machine = args.out / "live.jsonl", load(args.steps)
    lines = [msgspec.json.decode(line, type=Line) for line in kept.read_bytes().splitlines()] if kept.exists() else []
    if not args.report:
        measure(args, lines, machine)
    if lines:
        report(args, lines, machine)


if __name__ == "__main__":
    main()
