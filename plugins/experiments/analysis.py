"""From runs to effects, floors, guards, checks and verdicts: the same for played and for served experiments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from .measure import Summary
from .quality import direction_of, needs_time
from .report import ArmResult, Effect, GuardResult, LevelResult
from .spec import FEWEST_PAIRS, ExperimentSpec
from .statistics import Interval, holm, paired, scale_of, sign_flip_p
from .verdict import Guarded, guarded, judge

FEW_FOR_P99 = 1000


class LevelAnalysis:
    """One load level.  ``runs`` by arm: pair i is the i-th run of each; ``controls`` are runs of the baseline that
    differ from those of the pairs in nothing but the seed (or the time)."""

    def __init__(
        self,
        spec: ExperimentSpec,
        confidence: float,
        runs: Mapping[str, Sequence[Summary]],
        controls: Sequence[Summary],
        margins: Mapping[str, float],
    ) -> None:
        self._spec, self._confidence, self._runs, self._margins = spec, confidence, runs, margins
        self._base = runs[spec.baseline]
        self._controls, self._num_pairs = controls, len(self._base)
        every = dict.fromkeys(metric for some in runs.values() for one in some for metric in one.metrics)
        self._metrics = list(every)

    def result(
        self,
        label: str,
        rate: float | None,
        stopped_early: bool = False,
        checks: Sequence[str] = (),
        cautions: Sequence[str] = (),
    ) -> LevelResult:
        """``checks`` that failed and ``cautions`` beside those that are found here."""
        spec = self._spec
        means = {arm: {metric: _mean(runs, metric) for metric in self._metrics} for arm, runs in self._runs.items()}
        measured = min((one.facts.measured for one in self._base), default=0)
        return LevelResult(
            label=label,
            rate=rate,
            pairs=self._num_pairs,
            stopped_early=stopped_early,
            arms=tuple(self._arm(arm, checks) for arm in spec.others),
            means=means,
            measured=measured,
            cautions=(*cautions, *self._cautions(measured)),
            cost_per_million={
                arm: spec.price_per_hour / 3600 / speed * 1e6
                for arm in spec.arms
                if spec.price_per_hour and (speed := means[arm].get("throughput"))
            },
        )

    def _arm(self, arm: str, more: Sequence[str]) -> ArmResult:
        spec = self._spec
        checks, late = [*self._failed_checks(arm), *more], self._late(arm)
        found = {metric: self._effect(arm, metric) for metric in self._metrics}
        others = {metric: pair[0].p for metric, pair in found.items() if metric != spec.primary and pair[0]}
        corrected = holm(others)
        effects = []
        for metric, (effect, floor) in found.items():
            p = corrected.get(metric)
            lower = direction_of(metric) == "lower"
            failed = [*checks, *late] if needs_time(metric) else checks
            call, why = judge(effect, floor, lower, failed, p, 1 - self._confidence)
            effects.append(
                Effect(
                    metric=metric,
                    direction=direction_of(metric),
                    verdict=call.value,
                    why=why,
                    base=_mean(self._base, metric),
                    other=_mean(self._runs[arm], metric),
                    floor=floor,
                    **(_shown(effect, p) if effect else {}),  # type: ignore[arg-type]
                )
            )
        guards = tuple(
            GuardResult(metric, margin, self._guarded(metric, found[metric][0], margin, bool(late)).value)
            for metric, margin in self._margins.items()
            if metric in found
        )
        return ArmResult(arm, self._num_pairs, tuple(effects), guards, (*checks, *late))

    @staticmethod
    def _guarded(metric: str, effect: Interval | None, margin: float, late: bool) -> Guarded:
        if late and needs_time(metric):
            return Guarded.OPEN
        return guarded(effect, margin, direction_of(metric) == "lower")

    def _effect(self, arm: str, metric: str) -> tuple[Interval | None, float | None]:
        """The paired effect, and the floor on the same scale: runs of the baseline against others of its own."""
        base, other = _values(self._base, metric), _values(self._runs[arm], metric)
        control = _values(self._controls, metric)
        scale = scale_of(base, other, control)
        effect = paired(base, other, self._confidence, scale)
        floor = paired(base[: len(control)], control, self._confidence, scale)
        return effect, floor.half_width if floor else None

    def _failed_checks(self, arm: str) -> list[str]:
        failed = []
        if self._num_pairs < FEWEST_PAIRS:
            failed.append(f"too few runs: {self._num_pairs} pairs, {FEWEST_PAIRS} are needed")
        for name in (self._spec.baseline, arm):
            bad = [one.facts.failed[0] for one in self._runs[name] if one.facts.failed]
            if bad:
                failed.append(f"{name}: {len(bad)} of {len(self._runs[name])} runs: {bad[0]}")
        if self._spec.workload.forced:
            base, other = self._base, self._runs[arm]
            unequal = sum(
                one.facts.output_tokens != two.facts.output_tokens for one, two in zip(base, other, strict=True)
            )
            given_up = any(one.facts.little_error is None for one in (*base, *other))
            if unequal and not given_up:
                failed.append(f"in {unequal} pairs the arms did not do the same work (output tokens)")
        return failed

    def _late(self, arm: str) -> list[str]:
        """Checks that only touch metrics made of times."""
        out = []
        for name in (self._spec.baseline, arm):
            late = [one.facts.late for one in self._runs[name] if one.facts.late]
            if late:
                out.append(f"{name}: {len(late)} of {len(self._runs[name])} runs: {late[0]}")
        return out

    def _cautions(self, measured: int) -> list[str]:
        out = []
        if any(name.endswith("_p99") or "_p99@" in name for name in self._metrics) and measured < FEW_FOR_P99:
            out.append(f"a run measures {measured} requests: a p99 wants {FEW_FOR_P99}")
        control = _values(self._controls, self._spec.primary)
        aa = paired(_values(self._base, self._spec.primary)[: len(control)], control, self._confidence)
        if aa is not None and aa.excludes_zero:
            share = f"{1 - self._confidence:.1%}"
            out.append(f"the A/A interval of {self._spec.primary} leaves out 0, as {share} of them do: use more seeds")
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
