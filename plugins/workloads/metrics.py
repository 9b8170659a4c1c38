"""Figures of a run, by name.  All latencies count from the scheduled arrival; what did not end counts as infinity.

A name is a quantity with a statistic, and may name a class: ``ttft_p99``, ``tpot_mean``, ``e2e_p50@short`` (only
requests whose ``slo`` is ``short``).  Percentiles are linear between ranks, infinity included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from ...core.errors import ConfigError, nearest
from ..simulation.records import RequestRecord, Run
from .fairness import service_gap
from .scenario import Scenario, Slo

Direction = Literal["lower", "higher"]
#: Seconds that a request takes alone on an idle engine with a cold cache: (prompt tokens, output tokens) -> seconds.
Alone = Callable[[int, int], float]

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between ranks; nan of nothing, infinite as soon as an infinite value has a part in it."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, share = int(place), place - int(place)
    if not share or ordered[low] == ordered[min(low + 1, len(ordered) - 1)]:
        return ordered[low]
    return ordered[low] + share * (ordered[low + 1] - ordered[low])


def statistic(values: Sequence[float], name: str) -> float:
    """``mean``, ``max`` or ``p`` and a percentage."""
    if not values:
        return math.nan
    if name == "mean":
        return sum(values) / len(values)
    return max(values) if name == "max" else percentile(values, float(name[1:]))


class View:
    """A run as metrics see it: the requests that arrived in ``[from_s, to_s]`` of the run's time.

    ``alone`` makes ``slowdown`` possible.
    """

    def __init__(
        self,
        run: Run,
        scenario: Scenario,
        from_s: float = -math.inf,
        to_s: float = math.inf,
        alone: Alone | None = None,
    ) -> None:
        self.run, self.scenario, self.alone = run, scenario, alone
        self.requests = [one for one in run.requests if from_s <= one.arrival_s <= to_s]
        last = max((one.arrival_s for one in self.requests), default=0.0)
        first = min((one.arrival_s for one in self.requests), default=0.0)
        ends = [one.finished_s for one in self.requests if one.finished_s is not None]
        self.span_s = max([last, *ends]) - first
        self.first_s, self.last_arrival_s = first, last

    def of(self, label: str) -> list[RequestRecord]:
        """Requests of a class; all for ``""``.  Raises ConfigError if the scenario has no such class."""
        if not label:
            return self.requests
        known = {row.slo for row in self.scenario.rows} | {""}
        if label not in known:
            raise ConfigError(f"metric class {label!r}: {self.scenario.name} has no such{nearest(label, known - {''})}")
        return [one for one in self.requests if one.slo == label]


def attained(one: RequestRecord, slo: Mapping[str, Slo]) -> bool:
    """All limits of its class are met."""
    limits = slo.get(one.slo, Slo())
    tpot = one.tpot_s
    return (
        one.complete
        and (not limits.ttft_s or one.ttft_s <= limits.ttft_s)
        and (not limits.tpot_s or tpot is None or tpot <= limits.tpot_s)
        and (not limits.e2e_s or one.e2e_s <= limits.e2e_s)
    )


# --- distributions: the values of some requests, one statistic makes a figure -----------------------------------------


def _ttft(_view: View, some: Sequence[RequestRecord]) -> list[float]:
    return [one.ttft_s for one in some]


def _tpot(_view: View, some: Sequence[RequestRecord]) -> list[float]:
    return [tpot for one in some if (tpot := one.tpot_s) is not None]


def _e2e(_view: View, some: Sequence[RequestRecord]) -> list[float]:
    return [one.e2e_s for one in some]


def _normalized(_view: View, some: Sequence[RequestRecord]) -> list[float]:
    """E2E by output tokens."""
    return [one.e2e_s / one.wanted_tokens for one in some]


def _queue(_view: View, some: Sequence[RequestRecord]) -> list[float]:
    """From the scheduled arrival until it is first in a batch."""
    return [math.inf if one.scheduled_s is None else one.scheduled_s - one.arrival_s for one in some]


def _itl(_view: View, some: Sequence[RequestRecord]) -> list[float]:
    """Seconds between tokens of one request, all together; what did not end adds one infinite gap."""
    gaps = [late - early for one in some for early, late in pairwise(one.token_times)]
    return gaps + [math.inf for one in some if not one.complete]


def _session(view: View, some: Sequence[RequestRecord]) -> list[float]:
    """Each session or tree from its first arrival to its last end, without the delays of people and tools.

    Those on the way that led to the last end: before each request stands the one of its parents that ended last.
    """
    ends = {one.number: one.finished_s or 0.0 for one in view.run.requests}
    groups: dict[str, list[RequestRecord]] = {}
    for one in some:
        if one.session:
            groups.setdefault(one.session, []).append(one)
    spans = []
    for group in groups.values():
        if not all(one.complete for one in group):
            spans.append(math.inf)
            continue
        members = {one.number for one in group}
        number = max(members, key=lambda member: ends[member])
        end, think = ends[number], 0.0
        while parents := view.scenario.rows[number].parents:
            waited_for = max(parents, key=lambda parent: ends[parent])
            if waited_for not in members:  # of another class, or before the warm-up
                break
            think += view.scenario.rows[number].delay_s
            number = waited_for
        spans.append(end - min(one.arrival_s for one in group) - think)
    return spans


def _slowdown(view: View, some: Sequence[RequestRecord]) -> list[float]:
    """E2E divided by that of the same request alone on the idle engine with a cold cache."""
    if view.alone is None:
        raise ConfigError("metric slowdown: needs the step time of a request alone")
    return [one.e2e_s / view.alone(one.prompt_tokens, one.wanted_tokens) for one in some]


Values = Callable[[View, Sequence[RequestRecord]], Sequence[float]]
DISTRIBUTIONS: dict[str, Values] = {
    "ttft": _ttft,
    "tpot": _tpot,
    "itl": _itl,
    "e2e": _e2e,
    "normalized": _normalized,
    "queue": _queue,
    "session": _session,
    "slowdown": _slowdown,
}


# --- figures: one number of some requests -----------------------------------------------------------------------------


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _throughput(view: View, some: Sequence[RequestRecord]) -> float:
    """Output tokens per second."""
    return _share(sum(one.output_tokens for one in some), view.span_s)


def _total_throughput(view: View, some: Sequence[RequestRecord]) -> float:
    """Computed prompt tokens and output tokens per second: what was found in the cache was not worked for."""
    return _share(sum(one.prompt_tokens - one.cached_tokens + one.output_tokens for one in some), view.span_s)


def _request_throughput(view: View, some: Sequence[RequestRecord]) -> float:
    return _share(sum(one.complete for one in some), view.span_s)


def _attainment(view: View, some: Sequence[RequestRecord]) -> float:
    """Share of issued requests with all limits of their class met; what did not end is a miss."""
    return _share(sum(attained(one, view.scenario.slo) for one in some), len(some))


def _goodput(view: View, some: Sequence[RequestRecord]) -> float:
    """Requests per second that met all their limits."""
    return _share(sum(attained(one, view.scenario.slo) for one in some), view.span_s)


def _hit_rate(_view: View, some: Sequence[RequestRecord]) -> float:
    """Share of prompt tokens that came from the cache when their request first started."""
    return _share(sum(one.cached_tokens for one in some), sum(one.prompt_tokens for one in some))


def _hit_share(_view: View, some: Sequence[RequestRecord]) -> float:
    """Share of requests that found anything."""
    return _share(sum(one.cached_tokens > 0 for one in some), len(some))


def _preemption_rate(_view: View, some: Sequence[RequestRecord]) -> float:
    return _share(sum(one.preemptions for one in some), len(some))


def _recomputed_share(view: View, _some: Sequence[RequestRecord]) -> float:
    """Tokens computed again after a preemption, of all that were computed in the run."""
    computed = sum(step.prefill + step.decode for step in view.run.steps)
    return _share(view.run.counters.get("recomputed_tokens", 0.0), computed)


def _unfinished(_view: View, some: Sequence[RequestRecord]) -> float:
    return float(sum(not one.complete for one in some))


def _makespan(view: View, some: Sequence[RequestRecord]) -> float:
    """From the first arrival of the run to the last end of these requests."""
    ends = [math.inf if one.finished_s is None else one.finished_s for one in some]
    return max(ends, default=math.nan) - view.run.start_s


def _service_gap(_view: View, some: Sequence[RequestRecord]) -> float:
    return service_gap(some)


FIGURES: dict[str, tuple[Direction, Callable[[View, Sequence[RequestRecord]], float]]] = {
    "throughput": ("higher", _throughput),
    "total_throughput": ("higher", _total_throughput),
    "request_throughput": ("higher", _request_throughput),
    "attainment": ("higher", _attainment),
    "goodput": ("higher", _goodput),
    "hit_rate": ("higher", _hit_rate),
    "hit_share": ("higher", _hit_share),
    "preemption_rate": ("lower", _preemption_rate),
    "recomputed_share": ("lower", _recomputed_share),
    "unfinished": ("lower", _unfinished),
    "makespan": ("lower", _makespan),
    "service_gap": ("lower", _service_gap),
}
#: Every metric by name, without classes.
METRICS = (*FIGURES, *(f"{name}_{statistic}" for name in DISTRIBUTIONS for statistic in STATISTICS))


def direction(metric: str) -> Direction:
    """``lower`` or ``higher`` is better.  Raises ConfigError for an unknown metric, naming the nearest."""
    name = metric.partition("@")[0]
    if name not in METRICS:
        raise ConfigError(f"metric {metric!r}: there is no such metric{nearest(name, METRICS)}")
    return FIGURES[name][0] if name in FIGURES else "lower"


def value(view: View, metric: str) -> float:
    """The metric of a run; nan where nothing was measured.  Raises ConfigError for unknown names."""
    direction(metric)
    name, _, label = metric.partition("@")
    some = view.of(label)
    if name in FIGURES:
        return FIGURES[name][1](view, some)
    quantity, _, of = name.rpartition("_")
    return statistic(DISTRIBUTIONS[quantity](view, some), of)


def measure(view: View, metrics: Sequence[str]) -> dict[str, float]:
    """Several at once."""
    return {metric: value(view, metric) for metric in metrics}


class Little(NamedTuple):
    """Little's law: the mean number in the system against rate x mean E2E, which are equal if nothing was lost."""

    mean_in_system: float
    rate_times_e2e: float

    @property
    def error(self) -> float:
        """Relative difference."""
        return abs(self.mean_in_system - self.rate_times_e2e) / max(self.rate_times_e2e, 1e-12)


def little(run: Run) -> Little:
    """Of a whole run whose requests all ended.  From two sources: the host's count of live requests over time, and the
    requests' own times, which count from the scheduled arrival (so a late generator shows too)."""
    span = run.makespan_s
    if not span:
        return Little(math.nan, math.nan)
    return Little(run.in_system_s / span, sum(one.e2e_s for one in run.requests) / span)
