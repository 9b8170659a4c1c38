"""A run becomes one number per metric, the facts that checks look at, and as much as the report draws."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from ..simulation.records import Run, StepRecord
from ..workloads.metrics import Alone, View, percentile, value
from ..workloads.scenario import Scenario
from .quality import QUALITY, quality
from .spec import ExperimentSpec

#: Reported for every experiment.
USUAL = (
    *(f"{quantity}_{name}" for quantity in ("ttft", "tpot") for name in ("mean", "p50", "p95", "p99")),
    "itl_p99",
    "e2e_mean",
    "e2e_p99",
    "throughput",
    "total_throughput",
    "attainment",
    "goodput",
    "hit_rate",
    "preemption_rate",
)
QUANTILES = 200  # of a drawn distribution
BINS = 120  # of a drawn course of time
#: Latency of the generator that a run may have, at the 99th percentile: this, or a share of the median TTFT.
MOST_LAG_S, MOST_LAG_SHARE = 0.005, 0.01
MOST_LITTLE = 0.02
_SAME = 1e-9  # seconds: rounding of clock values


class Columns(msgspec.Struct, frozen=True):
    """Of every request, in order of number: times in seconds (None: never), tokens, and the group it belongs to."""

    arrival: list[float]
    scheduled: list[float | None]
    first: list[float | None]
    finished: list[float | None]
    prompt: list[int]
    output: list[int]
    tenant: list[str]
    group: list[str]


class Bin(msgspec.Struct, frozen=True, array_like=True):
    """Means over the steps in a stretch of time that starts at ``at``: tokens and sequences per step, requests."""

    at: float
    prefill: float
    decode: float
    running: float
    waiting: float


class Facts(msgspec.Struct, frozen=True):
    """What checks look at."""

    requests: int
    measured: int  # without those that arrived while warming up
    lost: int  # neither complete nor ended by their own deadline
    output_tokens: int
    little_error: float | None  # None: not to be had, as of a run with requests given up
    lag_p99_s: float
    median_ttft_s: float | None
    digest: str
    ids_digest: str = ""  # of all output ids, where a model made them

    @property
    def failed(self) -> list[str]:
        """What makes this run useless, in words."""
        out = []
        if self.lost:
            out.append(f"{self.lost} of {self.requests} requests have not ended")
        if self.little_error is not None and self.little_error > MOST_LITTLE:
            out.append(f"Little's law is off by {self.little_error:.1%}: requests were lost or counted twice")
        return out

    @property
    def late(self) -> str:
        """What makes its times useless, in words, or ``""``."""
        limit = max(MOST_LAG_S, MOST_LAG_SHARE * (self.median_ttft_s or 0.0))
        if self.lag_p99_s <= limit:
            return ""
        return f"the generator was late: p99 {self.lag_p99_s * 1e3:.1f} ms, the limit is {limit * 1e3:.1f} ms"


class Summary(msgspec.Struct, frozen=True):
    """All that is kept of a run.  Metrics that are not finite are None."""

    level: str
    rate: float | None  # arrivals per second; None: all at once
    arm: str
    seed: int
    role: str  # pair, control, repeat
    metrics: dict[str, float | None]
    facts: Facts
    columns: Columns
    itl: list[float]  # quantiles, seconds
    course: list[Bin]
    took_s: float = 0.0  # of real time


def metrics_of(spec: ExperimentSpec, made: Scenario) -> tuple[str, ...]:
    """Every metric that a run is measured by, the primary first."""
    guards = margins_of(spec, made)
    return tuple(dict.fromkeys((spec.primary, *guards, *made.primary, *spec.metrics, *USUAL)))


def margins_of(spec: ExperimentSpec, made: Scenario) -> dict[str, float]:
    """Guards and their margins: the file's, or those of the scenario."""
    return spec.guards or {guard.metric: guard.tolerance for guard in made.guards}


def measure(run: Run, made: Scenario, spec: ExperimentSpec, alone: Alone | None = None) -> dict[str, float | None]:
    """The metrics of a run, of the requests that arrived after the warm-up.  Whole sessions and trees are measured
    whole, so a metric of those takes the warm-up in."""
    whole = View(run, made, alone=alone)
    warm = View(run, made, from_s=_warm_from(whole, spec.warmup), alone=alone)
    out: dict[str, float | None] = {}
    classes = {row.slo for row in made.rows}
    for metric in metrics_of(spec, made):
        if metric.startswith("slowdown") and alone is None:
            continue
        if metric in QUALITY:
            continue
        if (label := metric.partition("@")[2]) and label not in classes:  # this draw has none of that class
            out[metric] = None
            continue
        number = value(whole if metric.startswith(("session", "makespan")) else warm, metric)
        out[metric] = number if math.isfinite(number) else None
    return out


def _warm_from(whole: View, share: float) -> float:
    return whole.first_s + share * (whole.last_arrival_s - whole.first_s)


def facts(
    run: Run,
    made: Scenario,
    spec: ExperimentSpec,
    ids_digest: str = "",
    counted_at: Mapping[int, float] | None = None,
) -> Facts:
    """What the checks need to know of a run."""
    whole = View(run, made)
    measured = View(run, made, from_s=_warm_from(whole, spec.warmup)).requests
    lost = [one for one in run.requests if not one.complete and one.reason != "deadline"]
    late = [one.submitted_s - one.arrival_s for one in run.requests if one.submitted_s is not None]
    ttft = median(one.ttft_s for one in measured) if measured else math.inf
    return Facts(
        requests=len(run.requests),
        measured=len(measured),
        lost=len(lost),
        output_tokens=sum(one.output_tokens for one in run.requests),
        little_error=little_error(run, counted_at) if all(one.complete for one in run.requests) else None,
        lag_p99_s=percentile(late, 99) if late else 0.0,
        median_ttft_s=ttft if math.isfinite(ttft) else None,
        digest=run.digest(),
        ids_digest=ids_digest,
    )


def little_error(run: Run, counted_at: Mapping[int, float] | None = None) -> float | None:
    """Little's law as it holds for every run: the area under the number in the system is the sum of the latencies.

    The number is counted twice at each launch: by the host (running and waiting), and from the requests' own arrivals
    and ends, whose area is that of their latencies.  Relative difference of the two areas over the time of the steps;
    None for a run without steps.  Who came in the very moment of a launch may be counted or not.  ``counted_at``: by
    step, when the host counted, if that is not when the decision was made.
    """
    steps = run.steps
    if not steps:
        return None
    arrivals = sorted(one.arrival_s if one.submitted_s is None else one.submitted_s for one in run.requests)
    ends = sorted(one.finished_s for one in run.requests if one.finished_s is not None)
    counted = least = most = 0.0
    for step in steps:
        planned = (counted_at or {}).get(step.step, step.launched_s - step.policy_s)
        gone = bisect_right(ends, planned + _SAME)
        counted += (step.running + step.waiting) * step.seconds
        least += (bisect_left(arrivals, planned - _SAME) - gone) * step.seconds
        most += (bisect_right(arrivals, planned + _SAME) - gone) * step.seconds
    return max(0.0, counted - most, least - counted) / most if most else None


def summarise(
    run: Run,
    made: Scenario,
    spec: ExperimentSpec,
    *,
    level: str,
    arm: str,
    seed: int,
    role: str,
    alone: Alone | None = None,
    outputs: Mapping[int, Sequence[int]] | None = None,
    counted_at: Mapping[int, float] | None = None,
    took_s: float = 0.0,
) -> Summary:
    """What is kept of ``run``; ``outputs`` are token ids by row, where a model made them."""
    ids_digest, extra = "", dict[str, float | None]()
    if outputs:
        ids_digest = hashlib.sha256(msgspec.json.encode(sorted(outputs.items()))).hexdigest()
        extra = quality(outputs) if spec.workload.prompts else {}
    requests = run.requests
    gaps = sorted(late - early for one in requests for early, late in pairwise(one.token_times))
    return Summary(
        level=level,
        rate=made.rate_per_s if math.isfinite(made.rate_per_s) else None,
        arm=arm,
        seed=seed,
        role=role,
        metrics={**measure(run, made, spec, alone), **extra},
        facts=facts(run, made, spec, ids_digest, counted_at),
        columns=Columns(
            arrival=[round(one.arrival_s, 6) for one in requests],
            scheduled=[_rounded(one.scheduled_s) for one in requests],
            first=[_rounded(one.first_token_s) for one in requests],
            finished=[_rounded(one.finished_s) for one in requests],
            prompt=[one.prompt_tokens for one in requests],
            output=[one.output_tokens for one in requests],
            tenant=[one.tenant for one in requests],
            group=[one.slo for one in requests],
        ),
        itl=[round(number, 6) for number in quantiles(gaps)],
        course=course(run.steps),
        took_s=round(took_s, 3),
    )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def quantiles(ordered: Sequence[float], count: int = QUANTILES) -> list[float]:
    """``count`` values of a sorted sequence, evenly spread by rank, the extremes included."""
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[round(index * (len(ordered) - 1) / (count - 1))] for index in range(count)]


def course(steps: Sequence[StepRecord], bins: int = BINS) -> list[Bin]:
    """Batch composition over time, in at most ``bins`` stretches of equal length; empty ones are left out."""
    if not steps:
        return []
    start = steps[0].launched_s
    width = (steps[-1].launched_s + steps[-1].seconds - start) / bins or 1.0
    groups: dict[int, list[StepRecord]] = {}
    for step in steps:
        groups.setdefault(min(bins - 1, int((step.launched_s - start) / width)), []).append(step)
    return [
        Bin(
            round(start + index * width, 4),
            *(
                round(sum(getattr(step, name) for step in some) / len(some), 2)
                for name in ("prefill", "decode", "running", "waiting")
            ),
        )
        for index, some in sorted(groups.items())
    ]
