"""Step time of an engine whose steps nobody logged, from the latencies of its requests.

The scheduler is played with the present coefficients; that says which steps each request was in.  Given the steps,
first and last token times are sums of step times and so linear in the coefficients, which are then solved for; and so
on until the schedule no longer moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..simulation.records import Run
from .fit import Columns, nnls
from .forms import StepForm

Floats = NDArray[np.float64]
Play = Callable[[StepForm], Run]
_SHORTEST_S = 0.1  # latencies below count as this much: a step is not seen any finer


class Latencies(NamedTuple):
    """What was measured of each request, in the order of the run's rows: seconds from arrival."""

    ttft_s: Sequence[float]
    e2e_s: Sequence[float]
    arrival_s: Sequence[float]
    output_tokens: Sequence[int]

    @property
    def tpot_s(self) -> list[float]:
        """Per token after the first, of requests with two or more."""
        rows = zip(self.ttft_s, self.e2e_s, self.output_tokens, strict=True)
        return [(end - first) / (count - 1) for first, end, count in rows if count > 1]

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        ends = [at + end for at, end in zip(self.arrival_s, self.e2e_s, strict=True)]
        return max(ends) - min(self.arrival_s)


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99."""
    return {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)}


def errors(run: Run, measured: Latencies, only: Sequence[int] | None = None) -> dict[str, float]:
    """Relative errors of a played run: makespan (of all), percentiles of TTFT, TPOT and E2E (of ``only`` these)."""
    some = list(range(len(run.requests))) if only is None else list(only)
    requests = [run.requests[number] for number in some]
    told = Latencies(
        [measured.ttft_s[number] for number in some],
        [measured.e2e_s[number] for number in some],
        [measured.arrival_s[number] for number in some],
        [measured.output_tokens[number] for number in some],
    )
    pairs = {
        "ttft": ([one.ttft_s for one in requests], told.ttft_s),
        "tpot": ([one.tpot_s for one in requests if one.tpot_s is not None], told.tpot_s),
        "e2e": ([one.e2e_s for one in requests], told.e2e_s),
    }
    out = {"makespan": run.makespan_s / measured.makespan_s - 1}
    for name, (ours, theirs) in pairs.items():
        made, real = percentiles(ours), percentiles(theirs)
        out |= {f"{name}_{key}": made[key] / real[key] - 1 for key in made}
    return out


def fit_runs(
    play: Play,
    measured: Latencies,
    start: StepForm,
    columns: Columns,
    only: Sequence[int] | None = None,
    rounds: int = 5,
) -> tuple[StepForm, float]:
    """The coefficients with the least relative error, and that error: mean absolute log ratio of TTFT and E2E.

    ``only``: fit to the latencies of these requests; the others are played but not looked at.
    """
    some = np.asarray(list(range(len(measured.ttft_s))) if only is None else list(only))
    form, best, least, solution = start, start, np.inf, None
    for turn in range(rounds + 1):
        run = play(form)
        loss = _loss(run, measured, some) if turn else np.inf  # a guess is no fit, however good
        if loss < least:
            best, least = form, loss
        new = _solve(run, measured, columns, some)
        solution = new if solution is None else 0.5 * (solution + new)
        form = columns.made(solution)
    return best, least


def _loss(run: Run, measured: Latencies, some: NDArray[np.int64]) -> float:
    total = 0.0
    for number in some.tolist():
        one = run.requests[number]
        total += abs(np.log(max(one.ttft_s, _SHORTEST_S) / max(measured.ttft_s[number], _SHORTEST_S)))
        total += abs(np.log(one.e2e_s / measured.e2e_s[number]))
    return total / (2 * len(some))


def _solve(run: Run, measured: Latencies, columns: Columns, some: NDArray[np.int64]) -> Floats:
    """Coefficients from one schedule: each request's wait, its stretch of decoding, and the makespan.

    A request waits for the rest of the step in which it arrives and then for whole steps.
    """
    steps = run.steps
    features = np.asarray([(s.prefill, s.decode, s.kv, s.attention) for s in steps], np.float64)
    each = columns.of(features)
    sums = np.vstack([np.zeros(each.shape[1]), np.cumsum(each, axis=0)])
    launched = np.asarray([step.launched_s for step in steps])
    ends = [step.launched_s + step.seconds for step in steps]
    place = {end: index for index, end in enumerate(ends)}
    rows, targets = [], []
    for number in some.tolist():
        one = run.requests[number]
        first, last = place[one.token_times[0]], place[one.token_times[-1]]
        inside = int(np.searchsorted(launched, one.arrival_s, side="right")) - 1
        wait = sums[first + 1] - sums[inside + 1]
        if inside >= 0 and ends[inside] > one.arrival_s:
            wait = wait + each[inside] * (ends[inside] - one.arrival_s) / steps[inside].seconds
        weight = 1.0 / max(measured.ttft_s[number], _SHORTEST_S)
        rows.append(wait * weight)
        targets.append(measured.ttft_s[number] * weight)
        stretch = measured.e2e_s[number] - measured.ttft_s[number]
        if last > first and stretch > 0:
            rows.append(2.0 * (sums[last + 1] - sums[first + 1]) / stretch)
            targets.append(2.0)
    busy = measured.makespan_s - sum(launched[1:] - np.asarray(ends[:-1]))
    weight = len(some) / 4 / busy
    rows.append(sums[-1] * weight)
    targets.append(busy * weight)
    return nnls(np.asarray(rows), np.asarray(targets))
