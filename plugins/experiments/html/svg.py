"""A little SVG: a frame with axes, and marks in data coordinates.  Colours are classes, so that the page's style and
the reader's light or dark theme decide them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 330, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 36


def number(value: float) -> str:
    """A number for people: three digits, no needless zeros."""
    if not math.isfinite(value):
        return "-"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


class Axis:
    """Data to pixels; ``low`` above ``high`` turns it round.  ``log`` needs values above 0."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool = False) -> None:
        if high == low:
            spread = abs(low) * 0.05 or 1.0
            low, high = (low / 1.1, high * 1.1) if log and low > 0 else (low - spread, high + spread)
        self.low, self.high, self.log = low, high, log
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self._of(self.low)) / (self._of(self.high) - self._of(self.low))
        return round(self._start + min(1.04, max(-0.04, share)) * (self._end - self._start), 1)

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.log else value

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the range."""
        if not self.log:
            return self._even_ticks(count)
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for digits in ((1, 2, 5), (1, 3), (1,)):
            found = [
                digit * 10.0**power
                for power in range(low, high + 1)
                for digit in digits
                if self.low * 0.999 <= digit * 10.0**power <= self.high * 1.001
            ]
            if len(found) < 2:  # less than a factor of 2
                return self._even_ticks(count)
            if len(found) <= count + 2:
                return found
        return found[:: math.ceil(len(found) / (count + 2))]

    def _even_ticks(self, count: int) -> list[float]:
        step = _round_step((self.high - self.low) / count)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 12) for index in range(first, last + 1)]


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= step * 0.999)


class Plot:
    """One picture with two axes; marks are added in data coordinates."""

    def __init__(
        self,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_label: str = "",
        y_label: str = "",
        log_x: bool = False,
        log_y: bool = False,
        width: int = WIDTH,
        height: int = HEIGHT,
        left: int = LEFT,
        x_ticks: bool = True,
        y_ticks: bool = True,
    ) -> None:
        self._title, self._width, self._height, self._left = title, width, height, left
        self.x = Axis(*x, left, width - RIGHT, log_x)
        self.y = Axis(*y, height - BOTTOM, TOP, log_y)
        self._marks: list[str] = []
        self._frame(x_label, y_label, x_ticks, y_ticks)

    def _frame(self, x_label: str, y_label: str, x_ticks: bool, y_ticks: bool) -> None:
        bottom, right = self._height - BOTTOM, self._width - RIGHT
        for tick in self.x.ticks() if x_ticks else ():
            at = self.x(tick)
            self._marks.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
            self.text(at, bottom + 14, number(tick), "tick mid")
        for tick in self.y.ticks(4) if y_ticks else ():
            at = self.y(tick)
            self._marks.append(f'<line class="grid" x1="{self._left}" x2="{right}" y1="{at}" y2="{at}"/>')
            self.text(self._left - 6, at + 3.5, number(tick), "tick end")
        self.text((self._left + right) / 2, self._height - 6, x_label, "label mid")
        if y_label:
            middle = (TOP + bottom) / 2
            self._marks.append(
                f'<text class="label mid" transform="translate(13 {middle}) rotate(-90)">{escape(y_label)}</text>'
            )

    def text(self, x: float, y: float, text: str, kind: str) -> None:
        """In pixels."""
        self._marks.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def line(self, points: Sequence[tuple[float, float]], kind: str, tip: str = "") -> None:
        if len(points) > 1:
            path = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
            self._marks.append(f'<polyline class="line {kind}" points="{path}">{_tip(tip)}</polyline>')

    def area(self, points: Sequence[tuple[float, float]], kind: str, base: Sequence[float] | None = None) -> None:
        """Between ``points`` and ``base`` (or the bottom)."""
        if len(points) > 1:
            lower = [(x, low) for (x, _), low in zip(points, base or [self.y.low] * len(points), strict=True)]
            path = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in [*points, *reversed(lower)])
            self._marks.append(f'<polygon class="area {kind}" points="{path}"/>')

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 3) -> None:
        self._marks.append(
            f'<circle class="dot {kind}" cx="{self.x(x)}" cy="{self.y(y)}" r="{radius}">{_tip(tip)}</circle>'
        )

    def segment(self, start: tuple[float, float], end: tuple[float, float], kind: str, tip: str = "") -> None:
        self._marks.append(
            f'<line class="{kind}" x1="{self.x(start[0])}" y1="{self.y(start[1])}" x2="{self.x(end[0])}" '
            f'y2="{self.y(end[1])}">{_tip(tip)}</line>'
        )

    def box(self, low: tuple[float, float], high: tuple[float, float], kind: str, tip: str = "") -> None:
        left, right = sorted((self.x(low[0]), self.x(high[0])))
        top, bottom = sorted((self.y(low[1]), self.y(high[1])))
        self._marks.append(
            f'<rect class="{kind}" x="{left}" y="{top}" width="{max(0.5, right - left):.1f}" '
            f'height="{max(0.5, bottom - top):.1f}" rx="2">{_tip(tip)}</rect>'
        )

    def svg(self) -> str:
        title = escape(self._title)
        return (
            f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {self._width} {self._height}" role="img" '
            f'aria-label="{title}">{"".join(self._marks)}</svg></figure>'
        )


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
