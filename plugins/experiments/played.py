"""The report on an experiment that ``ab`` plays, from the results in its store."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import __version__
from . import workload
from .analysis import LevelAnalysis
from .finding import finding
from .measure import Summary, margins_of
from .report import LevelResult, Report
from .runner import CONTROL, PAIR, REPEAT, Level, Runner

#: By load level, by arm (the baseline first): a run for each pair that is whole.
Runs = dict[str, dict[str, list[Summary]]]


def analyse(runner: Runner, levels: Sequence[Level], machine: dict[str, str]) -> tuple[Report, Runs]:
    """The report on everything that the store holds now, and the runs that it is made of."""
    spec = runner.experiment.spec
    seeds = {level.label: _whole_pairs(runner, level) for level in levels}
    runs = {label: _runs_of(runner, label, some) for label, some in seeds.items()}
    results = tuple(_level(runner, level, seeds[level.label], runs[level.label]) for level in levels)
    complete = all(result.pairs == len(spec.seed_list) or result.stopped_early for result in results)
    work = {
        "title": runner.first.title,
        "name": runner.first.name,
        "size": spec.workload.size if spec.workload.scenario else "",
        "requests": len(runner.first.rows),
        "kv_tokens": runner.first.kv_tokens,
        "block_size": runner.first.block_size,
        "scheduler": runner.first.scheduler,
        "lengths": "as the workload says"
        if spec.workload.forced
        else f"until the model ends, at most {spec.workload.output_tokens}",
        "trap": runner.first.notes,
    }
    report = Report(
        name=spec.name or runner.experiment.path.stem,
        question=spec.question,
        clock=runner.clock.clock,
        baseline=spec.baseline,
        primary=spec.primary,
        confidence=runner.confidence(),
        arms={name: dict(tree) for name, tree in spec.arms.items()},
        workload=work,
        machine={**runner.clock.description, **runner.store.state.description, **machine},
        capacity=runner.store.state.capacity,
        levels=results,
        complete=complete,
        correctness=_correctness(runner, runs),
        finding=finding(results, spec.primary, spec.baseline),
        version=__version__,
    )
    return report, runs


def _correctness(runner: Runner, runs: Runs) -> str:
    """Whether the arms said the same: policies, memory and batching must not change what a model answers."""
    pairs = equal = 0
    for by_arm in runs.values():
        base = by_arm[runner.experiment.spec.baseline]
        for arm in runner.experiment.spec.others:
            for one, two in zip(base, by_arm[arm], strict=True):
                pairs += bool(one.facts.ids_digest)
                equal += bool(one.facts.ids_digest) and one.facts.ids_digest == two.facts.ids_digest
    if not pairs:
        return "no model: outputs are forced"
    if any(arm.sampling for arm in runner.arms.values()):
        return "arms sample differently, so their outputs differ on purpose"
    return f"in {equal} of {pairs} pairs of runs both arms said the same, token by token"


def _runs_of(runner: Runner, label: str, seeds: Sequence[int]) -> dict[str, list[Summary]]:
    spec = runner.experiment.spec
    return {
        arm: [one for seed in seeds if (one := runner.store.get(label, PAIR, seed, arm))]
        for arm in (spec.baseline, *spec.others)
    }


def _level(runner: Runner, level: Level, seeds: Sequence[int], runs: dict[str, list[Summary]]) -> LevelResult:
    spec, store, label = runner.experiment.spec, runner.store, level.label
    others = [seed + workload.FLOOR_OFFSET for seed in seeds]
    controls = [one for seed in others if (one := store.get(label, CONTROL, seed, spec.baseline))]
    again = store.get(label, REPEAT, spec.seed_list[0], spec.baseline)
    checks, cautions = [], []
    if seeds and again is not None and again.facts.digest != runs[spec.baseline][0].facts.digest:
        checks.append("the same run twice gave other results: the simulation does not repeat")
    capacity, share = store.state.capacity, workload.num_roots(runner.first) / len(runner.first.rows)
    if capacity and level.rate >= capacity * share:
        cautions.append("overload has no steady state: latencies grow with the length of the run; compare throughput")
    arms = runner.arms
    cautions += [
        f"{name} is configured exactly as {spec.baseline}: it can show nothing but noise"
        for name in spec.others
        if arms[name][1:] == arms[spec.baseline][1:]
    ]
    analysis = LevelAnalysis(spec, runner.confidence(), runs, controls, margins_of(spec, runner.first))
    rate = level.rate if math.isfinite(level.rate) else None
    return analysis.result(label, rate, runner.decided(level, len(seeds)), checks, cautions)


def _whole_pairs(runner: Runner, level: Level) -> list[int]:
    """Seeds of which every arm and the control have been played, up to where the stated rule stopped."""
    spec, store, label = runner.experiment.spec, runner.store, level.label
    seeds: list[int] = []
    for seed in spec.seed_list:
        played = all(store.has(label, PAIR, seed, arm) for arm in spec.arms)
        if not (played and store.has(label, CONTROL, seed + workload.FLOOR_OFFSET, spec.baseline)):
            break
        seeds.append(seed)
        if runner.decided(level, len(seeds)):
            break
    return seeds
