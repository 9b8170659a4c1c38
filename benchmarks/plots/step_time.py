"""Step time against rows as an SVG, from what ``native_kernels.py --json FILE`` wrote.

    python benchmarks/plots/step_time.py FILE OUT.svg

Both axes are logarithmic.  The dashed line under each format is the time in which its weights are read once.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 56, 16, 110, 40
COLOURS = ("#888888", "#1b6ca8", "#5aa469", "#c0392b", "#e08e0b", "#7d3c98")


def draw(steps: dict[str, dict[str, list[float]]], floors: dict[str, float]) -> str:
    """``steps``: "N rows" -> format -> milliseconds."""
    rows = sorted(int(title.split()[0]) for title in steps if title.endswith(" rows"))
    least = {name: [min(steps[f"{count} rows"][name]) for count in rows] for name in steps[f"{rows[0]} rows"]}
    low = min([*floors.values(), *(min(line) for line in least.values())]) * 0.8
    high = max(max(line) for line in least.values()) * 1.2

    def x(count: float) -> float:
        share = math.log(count / rows[0]) / math.log(rows[-1] / rows[0])
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + math.log(high / value) / math.log(high / low) * (HEIGHT - TOP - BOTTOM)

    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {view}>']
    out.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for value in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= value <= high:
            out.append(f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
            out.append(f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value}</text>')
    below = HEIGHT - BOTTOM + 18
    out += [f'<text x="{x(count):.1f}" y="{below}" text-anchor="middle">{count}</text>' for count in rows]
    for colour, (name, line) in zip(COLOURS, least.items(), strict=False):
        points = " ".join(f"{x(count):.1f},{y(value):.1f}" for count, value in zip(rows, line, strict=True))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 6}" y="{y(line[-1]) + 4:.1f}" fill="{colour}">{name}</text>')
        if name in floors:
            at = f"{y(floors[name]):.1f}"
            out.append(f'<path d="M{LEFT} {at}H{LEFT + 90}" stroke="{colour}" stroke-dasharray="4 3"/>')
    out.append(f'<text x="{(WIDTH - RIGHT + LEFT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">rows in the step</text>')
    out.append(
        f'<text x="14" y="{HEIGHT / 2}" transform="rotate(-90 14 {HEIGHT / 2})" text-anchor="middle">ms</text></svg>'
    )
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    read = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(draw(read["steps"], read["floors"]))
