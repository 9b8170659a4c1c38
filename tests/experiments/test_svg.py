"""The little SVG behind the report's pictures."""

from __future__ import annotations

import pytest

from mainspring.plugins.experiments.html.svg import Axis, Plot, number


def test_an_axis_maps_both_ways_and_on_logarithms() -> None:
    assert [Axis(0, 10, 100, 200)(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert [Axis(4, 0, 0, 100)(value) for value in (0.5, 3.5)] == [87.5, 12.5]
    assert [Axis(0.01, 1, 0, 100, log=True)(value) for value in (0.01, 0.1, 1)] == [0, 50, 100]
    assert Axis(0, 10, 0, 100)(1e9) < 110, "what lies outside does not leave the picture"
    assert Axis(3, 3, 0, 100)(3) == 50


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (Axis(0, 10, 0, 1), [0, 2, 4, 6, 8, 10]),
        (Axis(0.013, 0.0151, 0, 1, log=True), [0.013, 0.0135, 0.014, 0.0145, 0.015]),
        (Axis(0.01, 100, 0, 1, log=True), [0.01, 0.1, 1, 10, 100]),
        (Axis(1, 9, 0, 1, log=True), [1, 2, 5]),
    ],
)
def test_ticks_are_round_and_few(axis: Axis, expected: list[float]) -> None:
    assert axis.ticks() == pytest.approx(expected)


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 0.1234, 12.345, 12345, 0.00012, 1e9, float("inf"))] == [
        "0", "0.123", "12.3", "12,345", "1e-4", "1e9", "-",
    ]  # fmt: skip


def test_text_is_escaped() -> None:
    plot = Plot("a < b & c", (0, 1), (0, 1), x_label="<x>")
    plot.dot(0.5, 0.5, "s0", 'tip "<&"')
    drawn = plot.svg()
    assert "a &lt; b &amp; c" in drawn and "&lt;x&gt;" in drawn and "<x>" not in drawn
