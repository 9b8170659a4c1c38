"""The report as a page of text: what it ran on, what differed, what came out, and what follows."""

from __future__ import annotations

from collections.abc import Iterable

from ..config_file import flatten
from .finding import change
from .quality import QUALITY
from .report import LevelResult, Report

_COLUMNS = {
    "TTFT p50, ms": ("ttft_p50", 1e3),
    "p95": ("ttft_p95", 1e3),
    "p99": ("ttft_p99", 1e3),
    "TPOT p50, ms": ("tpot_p50", 1e3),
    "p95 ": ("tpot_p95", 1e3),
    "p99 ": ("tpot_p99", 1e3),
    "tokens/s": ("throughput", 1.0),
}


def markdown(report: Report) -> str:
    """``report.md``."""
    work = report.workload
    arms = [report.baseline, *(name for name in report.arms if name != report.baseline)]
    facts = {
        "Hardware": report.machine.get("machine") or report.machine["run on"],
        "Software": f"mainspring {report.version}, Python {report.machine['python']}; "
        + report.machine.get("executor", report.machine["clock"]),
        "Model": report.machine.get("model", ""),
        "Data": _data(work),
        "Cache": _changed(report, "allocator", f"{work['kv_tokens']} tokens of KV, blocks of {work['block_size']}"),
        "Batching": _changed(report, "scheduler", ", ".join(f"{k} {v}" for k, v in dict(work["scheduler"]).items())),  # type: ignore[call-overload]
        "Sampling": _changed(
            report, "request", f"temperature 1 where nothing else is said; lengths: {work['lengths']}"
        ),
    }
    lines = [f"# {report.name}", "", report.question, ""]
    lines += ["| | |", "| --- | --- |", *(_row(f"**{key}**", value) for key, value in facts.items() if value)]
    for level in report.levels:
        lines += ["", f"## {level.label}", "", *_results(report, level, arms), *_verdicts(report, level)]
    lines += ["", "## Correctness", "", _sentence(report.correctness)]
    lines += ["", "## Finding", "", report.finding]
    return "\n".join(lines) + "\n"


def _data(work: dict[str, object]) -> str:
    title = f"prompts of text, {work['requests']} requests a run"
    if work["name"] == "prompts":
        return title
    return f"{work['name']} {work['size']}: {work['title']}, {work['requests']} requests a run".replace(" :", ":")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _changed(report: Report, table: str, common: str) -> str:
    """What all arms share, and what each changes in one table of the configuration."""
    parts = [common] if common else []
    for name, tree in report.arms.items():
        own = tree.get(table)
        if isinstance(own, dict) and own:
            parts.append(f"{name}: " + ", ".join(f"{key} = {value}" for key, value in flatten(own).items()))
    return "; ".join(parts)


def _results(report: Report, level: LevelResult, arms: Iterable[str]) -> list[str]:
    sampled = any("request" in tree for tree in report.arms.values())
    wanted = (report.primary, "hit_rate", *(QUALITY if sampled else ()))
    known = {name for name, _ in _COLUMNS.values()}
    extra = [
        metric
        for metric in dict.fromkeys(wanted)
        if metric not in known and any(means.get(metric) is not None for means in level.means.values())
    ]
    cost = ["cost per million tokens"] if level.cost_per_million else []
    header = ["arm", *(name.strip() for name in _COLUMNS), *extra, *cost]
    lines = [_row(*header), "| " + " | ".join("---" for _ in header) + " |"]
    for arm in arms:
        means = level.means[arm]
        cells = [_number(means.get(metric), scale) for metric, scale in _COLUMNS.values()]
        cells += [_number(means.get(metric), 1.0) for metric in extra]
        cells += [_number(level.cost_per_million.get(arm), 1.0)] if cost else []
        lines.append(_row(f"`{arm}`", *cells))
    note = f"Means over {level.pairs} runs of each arm, {level.measured} requests measured in a run."
    return [*lines, "", note, *(f"Caution: {caution}." for caution in level.cautions)]


def _verdicts(report: Report, level: LevelResult) -> list[str]:
    lines = [
        "",
        _row("against " + report.baseline, "metric", "change, with its interval", "verdict"),
        "| --- | --- | --- | --- |",
    ]
    for arm in level.arms:
        lines += [
            _row(f"`{arm.arm}`", effect.metric, change(effect), effect.verdict)
            for effect in arm.effects
            if effect.metric in (report.primary, "throughput", "ttft_p99") and effect.change is not None
        ]
    return lines


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, scale: float) -> str:
    if value is None:
        return "-"
    scaled = value * scale
    return f"{scaled:.3g}" if abs(scaled) < 1000 else f"{scaled:,.0f}"
