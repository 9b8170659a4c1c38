"""From the results in a store to a report: effects, floors, guards, checks, verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ... import __version__
from ..workloads.metrics import direction
from . import workload
from .finding import finding
from .measure import Summary, metrics_of
from .report import ArmResult, Effect, GuardResult, LevelResult, Report
from .runner import CONTROL, PAIR, REPEAT, Level, Runner
from .spec import FEWEST_PAIRS
from .statistics import Interval, holm, paired, scale_of, sign_flip_p
from .verdict import guarded, judge

FEW_FOR_P99 = 1000


def analyse(runner: Runner, levels: Sequence[Level], machine: dict[str, str]) -> Report:
    """The report on everything that the store holds now."""
    spec = runner.experiment.spec
    results = tuple(_LevelAnalysis(runner, level).result() for level in levels)
    complete = all(result.pairs == len(spec.seed_list) or result.stopped_early for result in results)
    work = {
        "title": runner.first.title,
        "name": runner.first.name,
        "size": spec.workload.size if spec.workload.scenario else "",
        "requests": len(runner.first.rows),
        "kv_tokens": runner.first.kv_tokens,
        "block_size": runner.first.block_size,
        "scheduler": runner.first.scheduler,
        "trap": runner.first.notes,
    }
    return Report(
        name=spec.name or runner.experiment.path.stem,
        question=spec.question,
        clock=runner.clock.clock,
        baseline=spec.baseline,
        primary=spec.primary,
        confidence=runner.confidence(),
        arms={name: dict(tree) for name, tree in spec.arms.items()},
        workload=work,
        machine={**runner.clock.description, **machine},
        capacity=runner.store.state.capacity,
        levels=results,
        complete=complete,
        finding=finding(results, spec.primary, spec.baseline),
        version=__version__,
    )


class _LevelAnalysis:
    """One load level."""

    def __init__(self, runner: Runner, level: Level) -> None:
        self._runner, self._level, self._spec = runner, level, runner.experiment.spec
        self._confidence = runner.confidence()
        self._seeds = self._whole_pairs()
        store, label = runner.store, level.label
        self._runs = {
            arm: [one for seed in self._seeds if (one := store.get(label, PAIR, seed, arm))] for arm in self._spec.arms
        }
        controls = (
            store.get(label, CONTROL, seed + workload.FLOOR_OFFSET, self._spec.baseline) for seed in self._seeds
        )
        self._controls = [one for one in controls if one]
        self._metrics = [
            metric
            for metric in metrics_of(self._spec, runner.first)
            if any(metric in one.metrics for runs in self._runs.values() for one in runs)
        ]

    def _whole_pairs(self) -> list[int]:
        """Seeds of which every arm and the control have been played, up to where a stated rule stopped."""
        spec, store, label = self._spec, self._runner.store, self._level.label
        seeds: list[int] = []
        for seed in spec.seed_list:
            played = all(store.has(label, PAIR, seed, arm) for arm in spec.arms)
            if not (played and store.has(label, CONTROL, seed + workload.FLOOR_OFFSET, spec.baseline)):
                break
            seeds.append(seed)
            if self._runner.decided(self._level, len(seeds)):
                break
        return seeds

    def result(self) -> LevelResult:
        spec, base = self._spec, self._runs[self._spec.baseline]
        means = {arm: {metric: _mean(runs, metric) for metric in self._metrics} for arm, runs in self._runs.items()}
        measured = min((one.facts.measured for one in base), default=0)
        return LevelResult(
            label=self._level.label,
            rate=self._level.rate if math.isfinite(self._level.rate) else None,
            pairs=len(self._seeds),
            stopped_early=self._runner.decided(self._level, len(self._seeds)),
            arms=tuple(self._arm(arm) for arm in spec.others),
            means=means,
            measured=measured,
            cautions=tuple(self._cautions(measured)),
            cost_per_million={
                arm: spec.price_per_hour / 3600 / speed * 1e6
                for arm in spec.arms
                if spec.price_per_hour and (speed := means[arm].get("throughput"))
            },
        )

    def _arm(self, arm: str) -> ArmResult:
        spec = self._spec
        checks = self._failed_checks(arm)
        found = {metric: self._effect(arm, metric) for metric in self._metrics}
        others = {metric: pair[0].p for metric, pair in found.items() if metric != spec.primary and pair[0]}
        corrected = holm(others)
        effects = []
        for metric, (effect, floor) in found.items():
            p = corrected.get(metric)
            lower = direction(metric) == "lower"
            call, why = judge(effect, floor, lower, checks, p, 1 - self._confidence)
            effects.append(
                Effect(
                    metric=metric,
                    direction=direction(metric),
                    verdict=call.value,
                    why=why,
                    base=_mean(self._runs[spec.baseline], metric),
                    other=_mean(self._runs[arm], metric),
                    floor=floor,
                    **(_shown(effect, p) if effect else {}),  # type: ignore[arg-type]
                )
            )
        margins = spec.guards or {guard.metric: guard.tolerance for guard in self._runner.first.guards}
        guards = tuple(
            GuardResult(metric, margin, guarded(found[metric][0], margin, direction(metric) == "lower").value)
            for metric, margin in margins.items()
            if metric in found
        )
        return ArmResult(arm, len(self._seeds), tuple(effects), guards, tuple(checks))

    def _effect(self, arm: str, metric: str) -> tuple[Interval | None, float | None]:
        """The paired effect, and the floor on the same scale: runs of the baseline against others of its own."""
        base, other = (_values(self._runs[name], metric) for name in (self._spec.baseline, arm))
        control = _values(self._controls, metric)
        scale = scale_of(base, other, control)
        effect = paired(base, other, self._confidence, scale)
        floor = paired(base, control, self._confidence, scale)
        return effect, floor.half_width if floor else None

    def _failed_checks(self, arm: str) -> list[str]:
        failed = []
        if len(self._seeds) < FEWEST_PAIRS:
            failed.append(f"too few runs: {len(self._seeds)} pairs, {FEWEST_PAIRS} are needed")
        for name in (self._spec.baseline, arm):
            bad = [one for one in self._runs[name] if one.facts.failed]
            if bad:
                failed.append(f"{name}: {len(bad)} of {len(self._runs[name])} runs: {bad[0].facts.failed[0]}")
        if self._spec.workload.forced:
            pairs = zip(self._runs[self._spec.baseline], self._runs[arm], strict=True)
            unequal = sum(one.facts.output_tokens != two.facts.output_tokens for one, two in pairs)
            given_up = any(
                one.facts.little_error is None for one in (*self._runs[arm], *self._runs[self._spec.baseline])
            )
            if unequal and not given_up:
                failed.append(f"in {unequal} pairs the arms did not do the same work (output tokens)")
        if not self._repeats():
            failed.append("the same run twice gave other results: the simulation does not repeat")
        return failed

    def _repeats(self) -> bool:
        """In virtual time A/A with the same seed is byte-equal."""
        if not self._seeds:
            return True
        place = self._level.label, REPEAT, self._spec.seed_list[0], self._spec.baseline
        again, first = self._runner.store.get(*place), self._runs[self._spec.baseline][0]
        return again is None or again.facts.digest == first.facts.digest

    def _cautions(self, measured: int) -> list[str]:
        out = []
        if any(name.endswith("_p99") or "_p99@" in name for name in self._metrics) and measured < FEW_FOR_P99:
            out.append(f"a run measures {measured} requests: a p99 wants {FEW_FOR_P99}")
        capacity = self._runner.store.state.capacity
        roots = workload.num_roots(self._runner.first) / len(self._runner.first.rows)
        if capacity and self._level.rate >= capacity * roots:
            out.append("overload has no steady state: latencies grow with the length of the run; compare throughput")
        base, control = (
            _values(runs, self._spec.primary) for runs in (self._runs[self._spec.baseline], self._controls)
        )
        aa = paired(base, control, self._confidence)
        if aa is not None and aa.excludes_zero:
            out.append(f"the A/A interval of {self._spec.primary} leaves out 0, as one in twenty does: use more seeds")
        return out


def _shown(effect: Interval, p: float | None) -> dict[str, object]:
    return {
        "scale": effect.scale,
        "change": effect.shown(effect.mean),
        "low": effect.shown(effect.low),
        "high": effect.shown(effect.high),
        "values": effect.values,
        "p": effect.p if p is None else p,
        "p_sign_flip": sign_flip_p(effect.values),
    }


def _values(runs: Sequence[Summary], metric: str) -> list[float]:
    found = (one.metrics.get(metric) for one in runs)
    return [math.inf if value is None else value for value in found]


def _mean(runs: Sequence[Summary], metric: str) -> float | None:
    values = _values(runs, metric)
    return fmean(values) if values and all(map(math.isfinite, values)) else None
