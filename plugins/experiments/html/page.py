"""Puts the page together: verdicts first, then pictures per load level, then every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from ...config_file import flatten
from ..finding import change
from ..measure import Summary
from ..report import ArmResult, LevelResult, Report
from ..table import floor
from . import charts
from .svg import number

_HERE = Path(__file__).parent
MOST_MOVES = 8


def page(report: Report, runs: Mapping[str, charts.Runs], limits: bool, played: bool = True) -> str:
    """``report.html``.  ``runs`` by load level and arm, the baseline first; ``limits``: requests have some to keep;
    ``played``: the arms of a pair had the same requests, and not each its share of a server's."""
    arms = [report.baseline, *(name for name in report.arms if name != report.baseline)]
    body = [
        f"<h1>{escape(report.name)}</h1>",
        f'<p class="soft">{escape(report.question)}</p>' if report.question else "",
        _cards(report),
        "" if report.complete else '<p class="warn">Not all pairs have been played yet.</p>',
        _facts(report, played),
        *_across(report, arms, limits),
        "<h2>By load level</h2>",
        _legend(arms),
        "<nav></nav>",
        *(_level(report, level, runs[level.label], arms, played) for level in report.levels),
        _definitions(report, played),
    ]
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(report.name)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{style}</style></head><body><main>{''.join(body)}</main><script>{script}</script></body></html>\n"
    )


def _cards(report: Report) -> str:
    cards = "".join(_card(report, level, arm) for level in report.levels for arm in level.arms)
    return f'<div class="cards">{cards}</div>'


def _card(report: Report, level: LevelResult, arm: ArmResult) -> str:
    effect = next((one for one in arm.effects if one.metric == report.primary), None)
    call = effect.verdict if effect else "refused"
    kind = call if call in ("better", "worse", "refused") else "same"
    size = f'<div class="size">{escape(report.primary)} {escape(change(effect))}</div>' if effect else ""
    why = f'<div class="soft">{escape(effect.why)}</div>' if effect else ""
    chips = "".join(
        f'<span class="chip {guard.result.split()[0]}">guard {escape(guard.metric)}: {guard.result}</span>'
        for guard in arm.guards
    )
    head = f"{escape(level.label)} · {escape(arm.arm)} against {escape(report.baseline)} · {arm.pairs} pairs"
    return (
        f'<div class="card {kind}"><div class="soft">{head}</div><div class="call">{escape(call)}</div>'
        f"{size}{why}{chips}</div>"
    )


def _facts(report: Report, played: bool) -> str:
    work = report.workload
    facts: dict[str, object] = {
        **report.machine,
        "workload": f"{work['name']} {work['size']}: {work['title']}",
        "requests per run" if played else "requests kept": work["requests"],
        "KV memory": f"{work['kv_tokens']} tokens in blocks of {work['block_size']}",
        "intervals": f"{report.confidence:.1%}, over pairs of {'runs' if played else 'windows'}",
    }
    if report.capacity:
        facts["capacity of the baseline"] = f"{number(report.capacity)} requests per second"
    facts |= {f"arm {name}": _arm_text(tree) for name, tree in report.arms.items()}
    cells = "".join(f"<div><b>{escape(key)}</b>{escape(str(value))}</div>" for key, value in facts.items() if value)
    trap = f'<p class="soft">Mind: {escape(str(work["trap"]))}</p>' if work["trap"] else ""
    return f'<div class="facts">{cells}</div>{trap}'


def _arm_text(tree: dict[str, object]) -> str:
    """``scheduler.use = fcfs``, and so on."""
    return ", ".join(f"{key} = {value}" for key, value in flatten(tree).items()) or "nothing changed"


def _across(report: Report, arms: Sequence[str], limits: bool) -> Iterable[str]:
    drawn = [
        charts.frontier("Goodput over offered load", "goodput", report.levels, arms),
        charts.frontier("Requests within their limits", "attainment", report.levels, arms) if limits else "",
        charts.frontier("Mean time to first token", "ttft_mean", report.levels, arms, log_y=True),
        charts.frontier("Output tokens per second", "throughput", report.levels, arms),
    ]
    if any(drawn):
        yield f'<h2>Over load</h2>{_legend(arms)}<div class="grid2">{"".join(drawn)}</div>'


def _legend(arms: Sequence[str]) -> str:
    items = "".join(
        f'<span><i style="background:var(--s{index})"></i>{escape(arm)}{" (baseline)" if not index else ""}</span>'
        for index, arm in enumerate(arms)
    )
    return f'<div class="legend">{items}</div>'


def _level(report: Report, level: LevelResult, runs: charts.Runs, arms: Sequence[str], played: bool) -> str:
    rate = f"{number(level.rate)} arrivals per second" if level.rate else "all at once"
    head = f"{rate} · {level.measured} requests measured per run" if played else f"{level.pairs} pairs of windows"
    notes = [*level.cautions, *dict.fromkeys(check for arm in level.arms for check in arm.checks)]
    parts = [
        f"<h3>{escape(level.label)} · {escape(head)}</h3>",
        *(f'<p class="warn">{escape(note)}</p>' for note in notes),
        *(charts.forest(arm) for arm in level.arms),
        _grid("Distributions", charts.latencies(runs)),
        _grid("Course of the first pair: prompt tokens (orange) on decoding (blue)", charts.composition(runs)),
        _grid(
            "Who pays, who hits",
            [
                charts.fairness(runs),
                charts.per_run("Share of prompt tokens found in the cache", "hit_rate", runs),
                charts.per_run("Primary metric, run by run", report.primary, runs),
            ],
        ),
        *(_moves(arm, runs[report.baseline], runs[arm]) for arm in arms[1:] if played),
        *(_numbers(report, arm) for arm in level.arms),
    ]
    return f'<section class="level" data-label="{escape(level.label)}">{"".join(parts)}</section>'


def _grid(title: str, drawn: Iterable[str]) -> str:
    body = "".join(drawn)
    return f'<h3>{escape(title)}</h3><div class="grid2">{body}</div>' if body else ""


def _moves(arm: str, base: Sequence[Summary], other: Sequence[Summary]) -> str:
    if not base or not other:
        return ""
    found = charts.moves(base[0], other[0])
    moved = [move for move in found if move.places]
    if not moved:
        return f"<h3>Order</h3><p>{escape(arm)} started the requests of the first pair in the same order.</p>"
    gained = sum(move.after < move.before for move in moved)
    text = (
        f"{len(moved)} of {len(found)} requests of the first pair were started in another place, the middle one by "
        f"{charts.middle_move(found):.0f} places; {gained} of them got their first token sooner, {len(moved) - gained} "
        "later or at the same time."
    )
    far = sorted(moved, key=lambda move: move.after - move.before)
    picked = [*far[: MOST_MOVES // 2], *far[-MOST_MOVES // 2 :]] if len(far) > MOST_MOVES else far
    rows = "".join(
        f'<tr><td>r{move.number}</td><td>{escape(move.what)}</td><td class="n">{move.places:+d}</td>'
        f'<td class="n">{number(move.before)}</td><td class="n">{number(move.after)}</td></tr>'
        for move in picked
    )
    table = (
        '<div class="scroll"><table><tr><th>request</th><th>what</th><th class="n">places later</th>'
        f'<th class="n">TTFT before, s</th><th class="n">after, s</th></tr>{rows}</table></div>'
    )
    return (
        f'<h3>Order: what {escape(arm)} did to whom</h3><p>{text}</p><div class="pair">{charts.reordered(arm, found)}'
        f"<div>{table}</div></div>"
    )


def _numbers(report: Report, arm: ArmResult) -> str:
    rows = []
    for effect in arm.effects:
        kind = effect.verdict if effect.verdict in ("better", "worse") else ""
        primary = ' class="primary"' if effect.metric == report.primary else ""
        cells = [number(value) if value is not None else "-" for value in (effect.base, effect.other)]
        p = "-" if effect.p is None else f"{effect.p:.2g}"
        rows.append(
            f'<tr{primary}><td>{escape(effect.metric)}</td><td class="n">{cells[0]}</td><td class="n">{cells[1]}</td>'
            f'<td class="n">{escape(change(effect))}</td><td class="n">{p}</td><td class="n">{floor(effect)}</td>'
            f'<td class="{kind}" title="{escape(effect.why)}">{escape(effect.verdict)}</td></tr>'
        )
    return (
        f"<details><summary>Every number of {escape(arm.arm)}</summary><div class='scroll'><table><tr><th>metric</th>"
        f'<th class="n">{escape(report.baseline)}</th><th class="n">{escape(arm.arm)}</th><th class="n">change</th>'
        f'<th class="n">p</th><th class="n">A/A floor</th><th>verdict</th></tr>{"".join(rows)}</table></div></details>'
    )


#: What a pair is, what gives the floor, and from when latencies count: of what was played, and of a server's traffic.
_PLAYED = (
    "Both arms of a pair see the same arrivals, lengths and contents. A run is one number per metric",
    "two groups of runs of the baseline show when only their seeds differ",
    "scheduled arrival",
)
_SERVED = (
    "The arms of a pair have served other requests of the same traffic. A window is one number per metric",
    "windows of the baseline next to each other show",
    "arrival",
)


def _definitions(report: Report, played: bool) -> str:
    pair, floor_from, arrival = _PLAYED if played else _SERVED
    return (
        f"<h2>How to read this</h2><p>{pair}; change, interval and p come from the pairs, never from single requests. "
        f"The A/A floor is the half-width of the interval that {floor_from}. A "
        "verdict needs an interval that leaves out 0 and an effect above the floor; it is refused when a check fails. "
        f"p values of all metrics but {escape(report.primary)} are corrected (Holm). Latencies count from the "
        f"{arrival}; TPOT is (end - first token) / (tokens - 1).</p>"
        f'<p class="soft">mainspring {escape(report.version)}</p>'
    )
