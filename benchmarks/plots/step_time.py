"""Step time against rows, context length and waiting requests, as SVG files.

    python benchmarks/plots/step_time.py FOLDER --steps FILE [--waiting FILE]

``--steps`` is what ``native_kernels.py --json FILE`` wrote and gives ``native_rows.svg`` and ``native_contexts.svg``;
``--waiting`` is what ``engine_share.py --json FILE`` wrote and gives ``native_waiting.svg``.  Axes are logarithmic.
Dashed: the floor of that format, the time in which the machine read what the step has to read in the same run.
Colours follow the reader's light or dark page.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 56, 16, 120, 44
#: On a light page, on a dark one.
COLOURS = (("#777777", "#9a9a9a"), ("#1b6ca8", "#6db3e8"), ("#3c8d4a", "#7fd08d"), ("#c0392b", "#ff8a7a"),
           ("#b36b00", "#f0b454"), ("#7d3c98", "#c79be0"))  # fmt: skip


class Line(NamedTuple):
    """A curve: ``points`` by place on the axis, and ``floor`` likewise, perhaps empty."""

    name: str
    points: dict[float, float]
    floor: dict[float, float]


def draw(lines: list[Line], axis: str) -> str:
    """The chart; milliseconds upwards."""
    places = sorted({at for line in lines for at in line.points})
    values = [value for line in lines for value in (*line.points.values(), *line.floor.values())]
    low, high = min(values) * 0.8, max(values) * 1.2

    def x(at: float) -> float:
        first = math.log(max(places[0], 0.5))
        share = (math.log(max(at, 0.5)) - first) / (math.log(places[-1]) - first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + math.log(high / value) / math.log(high / low) * (HEIGHT - TOP - BOTTOM)

    def path(points: dict[float, float]) -> str:
        return " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in sorted(points.items()))

    style = ["text{fill:#333}.grid{stroke:#ddd}", "@media(prefers-color-scheme:dark){text{fill:#ccc}.grid{stroke:#444}"]
    for index, pair in enumerate(COLOURS):
        for which, colour in enumerate(pair):
            style[which] += f".c{index}{{stroke:{colour}}}text.c{index}{{fill:{colour};stroke:none}}"
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {view}><style>{style[0]}{style[1]}}}</style>']
    for value in (10**power * digit for power in range(-1, 5) for digit in (1, 2, 5)):
        if low <= value <= high:
            out.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    below = HEIGHT - BOTTOM + 16
    out += [f'<text x="{x(at):.1f}" y="{below}" text-anchor="middle">{at:g}</text>' for at in places]
    names = sorted((y(line.points[max(line.points)]), index) for index, line in enumerate(lines))
    put = 0.0
    for want, index in names:  # names beside the ends of their lines, never on top of each other
        put = max(want + 4, put + 14)
        out.append(f'<text class="c{index}" x="{WIDTH - RIGHT + 6}" y="{put:.1f}">{lines[index].name}</text>')
    for index, line in enumerate(lines):
        out.append(f'<polyline class="c{index}" points="{path(line.points)}" fill="none" stroke-width="2"/>')
        if line.floor:
            dashes = 'fill="none" stroke-dasharray="4 3"'
            out.append(f'<polyline class="c{index}" points="{path(line.floor)}" {dashes}/>')
    middle = (WIDTH - RIGHT + LEFT) / 2
    out.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{axis}</text>')
    out.append(f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">ms</text></svg>')
    return "\n".join(out) + "\n"


def of_steps(read: list[dict[str, object]], key: str) -> list[Line]:
    """Curves over ``key`` of the steps that differ in nothing else."""
    other = "context" if key == "rows" else "rows"
    fixed = statistics.mode(point[other] for point in read)
    chosen = [point for point in read if point["count"] == 1 and point[other] == fixed]
    lines: dict[str, Line] = {}
    for point in chosen:
        for name, times in point["ms"].items():  # type: ignore[attr-defined]
            line = lines.setdefault(name, Line(name, {}, {}))
            line.points[point[key]] = statistics.median(times["step"])  # type: ignore[index]
            if times["floor"] and name in ("fp32", "auto"):
                line.floor[point[key]] = statistics.median(times["floor"])  # type: ignore[index]
    return list(lines.values())


def main() -> None:
    """Draw what there are figures for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--waiting", type=Path)
    args = parser.parse_args()
    if args.steps:
        read = json.loads(args.steps.read_text())
        decoding = [point for point in read if point["count"] == 1]
        alone = [point for point in decoding if point["rows"] == 1]
        (args.folder / "native_rows.svg").write_text(draw(of_steps(decoding, "rows"), "rows in the step"))
        (args.folder / "native_contexts.svg").write_text(draw(of_steps(alone, "context"), "context of one row, tokens"))
    if args.waiting:
        read = json.loads(args.waiting.read_text())
        lines = []
        for rows in sorted({point["rows"] for point in read}):
            own = [point for point in read if point["rows"] == rows]
            lines.append(Line(f"{rows} rows", {point["waiting"]: point["period"] for point in own}, {}))
            beside = {point["waiting"]: point["period"] - point["call"] for point in own}
            lines.append(Line("of it beside", beside, {}))
        (args.folder / "native_waiting.svg").write_text(draw(lines, "waiting requests"))


if __name__ == "__main__":
    main()
