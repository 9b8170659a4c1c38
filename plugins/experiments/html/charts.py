"""The pictures of a report, each from the results of one load level (or all of them)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from ..measure import QUANTILES, Summary, quantiles
from ..report import ArmResult, Effect, LevelResult
from .svg import Plot, number

Runs = Mapping[str, Sequence[Summary]]  # by arm, the baseline first
Point = tuple[float, float]


def distribution(title: str, samples: Mapping[str, Sequence[float]], unit: str) -> str:
    """The share of values below, by arm, on a logarithmic axis."""
    drawn = {arm: [value for value in sorted(values) if value > 0] for arm, values in samples.items()}
    every = [value for values in drawn.values() for value in values]
    if not every:
        return ""
    plot = Plot(title, (min(every), max(every)), (0, 1), x_label=unit, y_label="share below", log_x=True)
    for index, (arm, values) in enumerate(drawn.items()):
        steps = quantiles(values, QUANTILES)
        points = [(value, (rank + 0.5) / len(steps)) for rank, value in enumerate(steps)]
        plot.line(points, f"s{index}", arm)
        for share in (0.5, 0.99):
            at = values[min(len(values) - 1, int(share * len(values)))]
            plot.dot(at, share, f"s{index}", f"{arm}: {share:.0%} below {number(at)} {unit}", 3.5)
    return plot.svg()


def latencies(runs: Runs) -> list[str]:
    """TTFT, TPOT and ITL of all requests of all pairs."""
    ttft = {arm: [value for run in some for value in _ttft(run) if value is not None] for arm, some in runs.items()}
    tpot = {arm: [value for run in some for value in _tpot(run)] for arm, some in runs.items()}
    itl = {arm: [value for run in some for value in run.itl] for arm, some in runs.items()}
    pairs = (("Time to first token", ttft), ("Time per output token", tpot), ("Time between tokens", itl))
    return [distribution(title, samples, "seconds") for title, samples in pairs]


def _ttft(run: Summary) -> list[float | None]:
    columns = run.columns
    return [None if first is None else first - at for first, at in zip(columns.first, columns.arrival, strict=True)]


def _tpot(run: Summary) -> list[float]:
    rows = zip(run.columns.first, run.columns.finished, run.columns.output, strict=True)
    return [
        (end - first) / (count - 1) for first, end, count in rows if first is not None and end is not None and count > 1
    ]


def forest(arm: ArmResult) -> str:
    """Every metric's change with its interval over the band of the A/A floor; better is to the right."""
    shown = [one for one in arm.effects if one.scale == "ratio" and one.change and one.low and one.high]
    if not shown:
        return ""
    reach = 0.05
    for effect in shown:
        reach = max(reach, *(abs(math.log(value)) for value in (effect.low, effect.high) if value))
    reach = min(reach * 1.08, 3.0)
    height = 30 + 22 * len(shown) + 38
    title = f"{arm.arm}: change of every metric, better to the right (band: what other seeds alone would show)"
    plot = Plot(
        title,
        (-reach, reach),
        (len(shown), 0),
        width=940,
        height=height,
        left=170,
        y_ticks=False,
        x_label="log of the ratio",
    )
    plot.segment((0, 0), (0, len(shown)), "zero")
    for row, effect in enumerate(shown):
        sign = -1.0 if effect.direction == "lower" else 1.0
        _forest_row(plot, effect, row + 0.5, sign, reach)
    return plot.svg()


def _forest_row(plot: Plot, effect: Effect, at: float, sign: float, reach: float) -> None:
    assert effect.change and effect.low and effect.high
    middle, low, high = (sign * math.log(value) for value in (effect.change, effect.low, effect.high))
    if effect.floor is not None:
        edge = min(effect.floor, reach)
        plot.box((-edge, at - 0.32), (edge, at + 0.32), "floor", f"A/A floor ±{math.expm1(effect.floor):.1%}")
    kind = {"better": "good", "worse": "bad"}.get(effect.verdict, "neutral")
    tip = (
        f"{effect.metric}: {effect.change - 1:+.1%} [{effect.low - 1:+.1%}, {effect.high - 1:+.1%}], {effect.verdict}: "
        f"{effect.why}"
    )
    plot.segment((low, at), (high, at), f"bar {kind}", tip)
    plot.dot(middle, at, kind, tip, 4)
    plot.text(162, plot.y(at) + 4, effect.metric, "tick end")


def composition(runs: Runs) -> list[str]:
    """Tokens per step over time, of the first pair, prompt tokens on top of decoding sequences; and who waits."""
    first = {arm: some[0] for arm, some in runs.items() if some and some[0].course}
    if not first:
        return []
    most = max(bin_.prefill + bin_.decode for run in first.values() for bin_ in run.course)
    end = max(run.course[-1].at for run in first.values())
    out = []
    for arm, run in first.items():
        plot = Plot(
            f"Batch composition, {arm}", (0, end), (0, most * 1.05), x_label="seconds", y_label="tokens per step"
        )
        decode = [(bin_.at, bin_.decode) for bin_ in run.course]
        plot.area([(bin_.at, bin_.decode + bin_.prefill) for bin_ in run.course], "prefill", [y for _, y in decode])
        plot.area(decode, "decode")
        out.append(plot.svg())
    queue = max(bin_.waiting + bin_.running for run in first.values() for bin_ in run.course)
    plot = Plot("Requests waiting", (0, end), (0, max(1.0, queue)), x_label="seconds", y_label="requests")
    for index, (arm, run) in enumerate(first.items()):
        plot.line([(bin_.at, bin_.waiting) for bin_ in run.course], f"s{index}", arm)
    return [*out, plot.svg()]


def fairness(runs: Runs) -> str:
    """Mean TTFT by tenant, or by class where there are no tenants."""
    name, groups = _groups(runs)
    if len(groups) < 2:
        return ""
    means = {
        (arm, group): fmean(values)
        for arm, some in runs.items()
        for group in groups
        if (values := [value for run in some for value in _ttft_of(run, name, group)])
    }
    return bars(f"Mean time to first token by {name}", groups, list(runs), means, "seconds")


def _groups(runs: Runs) -> tuple[str, list[str]]:
    every = [run.columns for some in runs.values() for run in some]
    for name in ("tenant", "group"):
        found = sorted({one for columns in every for one in getattr(columns, name)} - {""})
        if len(found) > 1:
            return ("tenant" if name == "tenant" else "class"), found[:12]
    return "tenant", []


def _ttft_of(run: Summary, name: str, group: str) -> list[float]:
    columns = run.columns
    labels = columns.tenant if name == "tenant" else columns.group
    return [value for value, label in zip(_ttft(run), labels, strict=True) if label == group and value is not None]


def bars(
    title: str, groups: Sequence[str], arms: Sequence[str], values: Mapping[tuple[str, str], float], label: str
) -> str:
    """Upright bars, one group per label and one bar per arm."""
    most = max(values.values(), default=1.0)
    plot = Plot(title, (0, len(groups)), (0, most * 1.08), y_label=label, x_ticks=False)
    wide = 0.8 / len(arms)
    for place, group in enumerate(groups):
        for index, arm in enumerate(arms):
            if (value := values.get((arm, group))) is not None:
                left = place + 0.1 + index * wide
                plot.box((left, 0), (left + wide * 0.92, value), f"fill s{index}", f"{arm}, {group}: {number(value)}")
        plot.text(plot.x(place + 0.5), plot.y(0) + 14, group, "tick mid")
    return plot.svg()


def per_run(title: str, metric: str, runs: Runs) -> str:
    """One dot per run and arm, and a bar at the mean: how much runs differ."""
    found = {
        arm: [value for run in some if (value := run.metrics.get(metric)) is not None] for arm, some in runs.items()
    }
    every = [value for values in found.values() for value in values]
    if not every or max(every) == min(every) == 0:
        return ""
    low, high = min(every), max(every)
    margin = (high - low) * 0.1 or abs(high) * 0.1
    plot = Plot(title, (0, len(found)), (max(0.0, low - margin), high + margin), y_label=metric, x_ticks=False)
    for index, (arm, values) in enumerate(found.items()):
        for rank, value in enumerate(values):
            at = index + 0.3 + 0.4 * (rank + 0.5) / len(values)
            plot.dot(at, value, f"s{index}", f"{arm}, pair {rank + 1}: {number(value)}")
        if values:
            middle = fmean(values)
            plot.segment((index + 0.22, middle), (index + 0.78, middle), f"line s{index}", f"{arm}: {number(middle)}")
        plot.text(plot.x(index + 0.5), plot.y(plot.y.low) + 14, arm, "tick mid")
    return plot.svg()


class Move(NamedTuple):
    """What another order did to one request of a pair: ``places`` later in the order of starts, and both TTFTs."""

    number: int
    places: int
    before: float
    after: float
    what: str


def moves(base: Summary, other: Summary) -> list[Move]:
    """Every request of a pair: by how many places it was started later (earlier: negative), and both its TTFTs."""
    orders = []
    for run in (base, other):
        times = [(at, index) for index, at in enumerate(run.columns.scheduled) if at is not None]
        orders.append({index: place for place, (_, index) in enumerate(sorted(times))})
    ttft = _ttft(base), _ttft(other)
    out = []
    for index in orders[0].keys() & orders[1].keys():
        before, after = ttft[0][index], ttft[1][index]
        if before is not None and after is not None:
            columns = base.columns
            what = f"{columns.prompt[index]} tokens in, {columns.output[index]} out"
            label = columns.tenant[index] or columns.group[index]
            out.append(Move(index, orders[1][index] - orders[0][index], before, after, f"{label} {what}".strip()))
    return sorted(out, key=lambda move: move.number)


def reordered(arm: str, found: Sequence[Move]) -> str:
    """Places against the change in TTFT."""
    moved = [move for move in found if move.places]
    if not moved:
        return ""
    reach = max(abs(move.places) for move in moved)
    changes = [move.after - move.before for move in found]
    plot = Plot(
        f"Requests that {arm} started earlier or later",
        (-reach, reach),
        (min(changes), max(changes)),
        x_label="places later in the order of starts",
        y_label="TTFT change, seconds",
    )
    plot.segment((-reach, 0), (reach, 0), "zero")
    plot.segment((0, min(changes)), (0, max(changes)), "zero")
    for move in found:
        change = move.after - move.before
        kind = "good" if change < 0 else "bad" if change > 0 else "neutral"
        times = f"TTFT {number(move.before)} s, then {number(move.after)} s"
        tip = f"r{move.number} ({move.what}): {move.places:+d} places, {times}"
        plot.dot(move.places, change, kind + " faint", tip, 2.5)
    return plot.svg()


def frontier(title: str, metric: str, levels: Sequence[LevelResult], arms: Sequence[str], log_y: bool = False) -> str:
    """A metric over the offered rate, one line per arm."""
    lines: dict[str, list[Point]] = {
        arm: [
            (level.rate, value)
            for level in levels
            if level.rate is not None and (value := level.means[arm].get(metric)) is not None
        ]
        for arm in arms
    }
    every = [point for points in lines.values() for point in points]
    if len({x for x, _ in every}) < 2:
        return ""
    ys = [y for _, y in every]
    log_y = log_y and min(ys) > 0
    y_range = (min(ys), max(ys)) if log_y else (0.0, max(ys) * 1.06)
    xs = [x for x, _ in every]
    plot = Plot(title, (min(xs), max(xs)), y_range, x_label="arrivals per second", y_label=metric, log_y=log_y)
    for index, arm in enumerate(arms):
        points = sorted(lines[arm])
        plot.line(points, f"s{index}", arm)
        for x, y in points:
            plot.dot(x, y, f"s{index}", f"{arm}: {number(y)} at {number(x)} per second", 3.5)
    return plot.svg()


def middle_move(found: Sequence[Move]) -> float:
    """Median number of places, of those that moved."""
    return median([abs(move.places) for move in found if move.places] or [0])
