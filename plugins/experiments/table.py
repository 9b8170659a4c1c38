"""The report for a terminal."""

from __future__ import annotations

import math

from .finding import change
from .report import ArmResult, Effect, LevelResult, Report

#: Shown for every arm, besides the primary and the guards; everything is in report.json.
_SHOWN = ("ttft_mean", "ttft_p99", "tpot_mean", "itl_p99", "e2e_mean", "throughput", "goodput", "hit_rate")


def text(report: Report) -> str:
    """Header, one table per load level and arm, cautions, finding."""
    lines = [report.name, *([report.question] if report.question else [])]
    lines += [f"{key}: {value}" for key, value in report.machine.items()]
    if report.capacity:
        lines.append(f"capacity of {report.baseline}: {report.capacity:.4g} requests per second")
    for level in report.levels:
        for arm in level.arms:
            lines += ["", *_arm(report, level, arm)]
        for name, cost in level.cost_per_million.items():
            lines.append(f"  {name}: {cost:.3f} per million output tokens")
        lines += [f"  caution: {caution}" for caution in level.cautions]
    if not report.complete:
        lines += ["", "not all pairs have been played; --resume goes on"]
    return "\n".join([*lines, "", report.finding]) + "\n"


def _arm(report: Report, level: LevelResult, arm: ArmResult) -> list[str]:
    early = ", stopped early" if level.stopped_early else ""
    lines = [f"{level.label}: {arm.arm} against {report.baseline}, {arm.pairs} pairs{early}"]
    lines += [f"  check failed: {check}" for check in arm.checks]
    guards = {guard.metric: guard for guard in arm.guards}
    wanted = dict.fromkeys((report.primary, *guards, *_SHOWN))
    by_name = {effect.metric: effect for effect in arm.effects}
    rows: list[tuple[str, ...]] = [("METRIC", report.baseline, arm.arm, "CHANGE", "A/A FLOOR", "VERDICT")]
    for metric in wanted:
        if (effect := by_name.get(metric)) is not None and not _empty(effect):
            name = f"{metric} *" if metric == report.primary else metric
            guard = f" (guard {guards[metric].result})" if metric in guards else ""
            rows.append(
                (
                    name,
                    _number(effect.base),
                    _number(effect.other),
                    change(effect),
                    floor(effect),
                    effect.verdict + guard,
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines += [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return lines


def _empty(effect: Effect) -> bool:
    return effect.base is None and effect.other is None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def floor(effect: Effect) -> str:
    """The noise floor as a reader wants it."""
    if effect.floor is None:
        return "-"
    return f"{math.expm1(effect.floor):.1%}" if effect.scale == "ratio" else f"{effect.floor:.3g}"
