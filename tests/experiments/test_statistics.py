"""Intervals, tests and verdicts of an A/B, against known values and by how often they err."""

from __future__ import annotations

import math
from random import Random

import pytest

from mainspring.plugins.experiments.statistics import Interval, holm, interval, paired, sign_flip_p
from mainspring.plugins.experiments.student import quantile, two_sided
from mainspring.plugins.experiments.verdict import Call, Guarded, guarded, judge


@pytest.mark.parametrize(
    ("dof", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (9, 2.2622), (10, 2.2281), (29, 2.0452)],
)
def test_quantiles_are_those_of_the_printed_tables(dof: int, expected: float) -> None:
    assert quantile(0.95, dof) == pytest.approx(expected, abs=6e-5)
    assert two_sided(expected, dof) == pytest.approx(0.05, abs=1e-5)


def test_two_sided_of_far_and_near() -> None:
    assert two_sided(0.0, 7) == 1.0
    assert two_sided(math.inf, 7) == 0.0
    assert two_sided(-2.2622, 9) == two_sided(2.2622, 9)
    assert quantile(0.99, 4) == pytest.approx(4.6041, abs=6e-5)


def test_a_ratio_is_the_geometric_mean_with_an_interval_over_pairs() -> None:
    effect = paired([1.0, 2.0, 4.0], [1.1, 2.2, 4.4])
    assert effect is not None and effect.scale == "ratio"
    assert effect.shown(effect.mean) == pytest.approx(1.1)
    assert effect.half_width == pytest.approx(0, abs=1e-9)
    assert effect.excludes_zero
    spread = interval("ratio", [0.1, -0.1, 0.3], 0.95)
    assert spread.mean == pytest.approx(0.1)
    assert spread.half_width == pytest.approx(4.3027 * 0.2 / math.sqrt(3), rel=1e-4)
    assert not spread.excludes_zero


def test_a_metric_that_is_zero_somewhere_is_compared_by_difference() -> None:
    effect = paired([0.0, 0.2, 0.1], [0.1, 0.3, 0.2])
    assert effect is not None and effect.scale == "difference"
    assert effect.shown(effect.mean) == pytest.approx(0.1)


@pytest.mark.parametrize(("base", "other"), [([1.0], [2.0]), ([1.0, math.inf], [1.0, 2.0]), ([math.nan, 1], [1, 1])])
def test_no_interval_without_two_finite_pairs(base: list[float], other: list[float]) -> None:
    assert paired(base, other) is None


def test_equal_runs_have_no_effect_and_equal_shifts_a_certain_one() -> None:
    same = paired([1.0, 3.0, 2.0], [1.0, 3.0, 2.0])
    assert same is not None and not same.excludes_zero and same.p == 1.0
    shifted = paired([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert shifted is not None and shifted.excludes_zero and shifted.p == 0.0


def test_sign_flips_are_exact() -> None:
    assert sign_flip_p([1.0] * 10) == pytest.approx(2 / 2**10)
    assert sign_flip_p([1.0, -1.0]) == 1.0
    assert sign_flip_p([3.0, 1.0, 1.0]) == pytest.approx(2 / 8)
    assert sign_flip_p([0.0] * 15) is None


def test_holm_steps_down_and_never_inverts() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def effect(mean: float, half: float) -> Interval:
    return Interval("ratio", (), mean, mean - half, mean + half, 0.01)


def test_the_verdict_follows_direction_floor_and_correction() -> None:
    assert judge(effect(-0.2, 0.1), 0.05, True, ()).call is Call.BETTER
    assert judge(effect(-0.2, 0.1), 0.05, False, ()).call is Call.WORSE
    assert judge(effect(-0.2, 0.3), 0.05, True, ()).call is Call.SAME
    assert judge(effect(-0.2, 0.1), 0.05, True, (), p=0.06).call is Call.SAME
    below = judge(effect(-0.2, 0.1), 0.25, True, ())
    assert below.call is Call.SAME and "28.4%" in below.why


def test_a_failed_check_refuses_the_verdict_and_says_why() -> None:
    verdict = judge(effect(-0.2, 0.1), 0.05, True, ["3 requests have not ended", "only 2 pairs"])
    assert verdict.call is Call.REFUSED and verdict.why == "3 requests have not ended; only 2 pairs"
    assert judge(None, None, True, ()).call is Call.REFUSED


def test_a_guard_is_kept_only_by_the_whole_interval() -> None:
    assert guarded(effect(0.0, 0.04), 0.05, True) is Guarded.KEPT
    assert guarded(effect(0.0, 0.06), 0.05, True) is Guarded.OPEN
    assert guarded(effect(0.2, 0.1), 0.05, True) is Guarded.BROKEN
    assert guarded(effect(0.2, 0.1), 0.05, False) is Guarded.KEPT
    assert guarded(effect(-0.2, 0.1), 0.05, False) is Guarded.BROKEN
    assert guarded(None, 0.05, True) is Guarded.OPEN


def test_intervals_err_as_often_as_they_say() -> None:
    """4,000 draws without any effect: 5 % of the intervals leave out 0, within four standard errors."""
    random = Random(7)
    draws = 4000
    wrong = sum(interval("ratio", [random.gauss(0, 0.3) for _ in range(10)], 0.95).excludes_zero for _ in range(draws))
    assert abs(wrong / draws - 0.05) < 4 * math.sqrt(0.05 * 0.95 / draws)
