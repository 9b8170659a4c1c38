"""Windows of live traffic as pairs: what counts, what does not, and the floor from neighbouring windows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
from tests.experiments.lab import record

from mainspring.plugins.experiments.html import page
from mainspring.plugins.experiments.measure import Summary
from mainspring.plugins.experiments.served.windows import LEVEL, Book
from mainspring.plugins.experiments.spec import ExperimentSpec, LiveSpec


def spec() -> ExperimentSpec:
    live = LiveSpec(mode="switchback", window_s=10.0)
    arms: dict[str, dict[str, object]] = {"a": {}, "b": {}}
    return ExperimentSpec(name="w", baseline="a", primary="ttft_mean", warmup=0.0, live=live, arms=arms)


def filled(factor: float, windows: int = 8, per_window: int = 20) -> Book:
    """Windows whose mean wanders (a shared load), arm b slower by ``factor``."""
    random, book = Random(4), Book(spec())
    for window in range(windows):
        level = 0.2 * (1 + 0.1 * random.random())
        for arm, slow in (("a", 1.0), ("b", factor)):
            for number in range(per_window):
                at = window * 20 + number * 0.5
                book.keep(window, arm, record(f"{arm}{number}", at, level * slow * (0.95 + 0.1 * random.random())))
        book.close(window)
    return book


def test_a_slower_arm_is_found_and_an_equal_one_is_not() -> None:
    report, runs = filled(1.5).report({}, "w")
    effect = report.levels[0].arms[0].effects[0]
    assert (effect.metric, effect.verdict) == ("ttft_mean", "worse")
    assert effect.change is not None and abs(effect.change - 1.5) < 0.05
    assert effect.floor is not None and 0 < effect.floor < 0.2
    assert len(runs["a"]) == len(runs["b"]) == 8
    same, _ = filled(1.0).report({}, "w")
    assert same.levels[0].arms[0].effects[0].verdict == "no difference shown"


def test_an_open_window_and_one_with_too_little_in_it_are_no_pairs() -> None:
    book = filled(1.0, windows=6)
    book.keep(6, "a", record("x"))
    book.close(6)
    book.keep(7, "a", record("y"))
    assert book.pairs == [0, 1, 2, 3, 4, 5]


def test_a_request_that_failed_refuses_the_verdict() -> None:
    book = filled(1.5, windows=5)
    for arm in "ab":
        for number in range(3):
            late = record(f"z{number}", 200.0)
            if arm == "b" and number == 1:
                late = msgspec.structs.replace(late, reason="error", wanted_tokens=9)
            book.keep(5, arm, late)
    book.close(5)
    result = book.report({}, "w")[0].levels[0].arms[0]
    assert result.checks == ("b: 1 of 6 runs: 1 of 3 requests have not ended",)
    assert {effect.verdict for effect in result.effects} == {"refused"}


def test_a_summary_is_made_once_and_its_records_are_given_back(tmp_path: Path) -> None:
    book = filled(1.0)
    first, second = book.runs(), book.runs()
    assert all(one is two for arm in "ab" for one, two in zip(first[arm], second[arm], strict=True))
    assert not book._records


def test_a_closed_window_that_is_no_pair_is_forgotten() -> None:
    book = Book(spec())
    book.keep(0, "a", record("x"))
    book.close(0)
    assert book.pairs == [] and not book._records


def test_every_arm_has_the_same_windows_while_others_close() -> None:
    """The event loop closes a window after each summary that is made."""

    class Busy(Book):
        def _summary(self, window: int, arm: str) -> Summary:
            made = super()._summary(window, arm)
            number = len(self.pairs)
            for name in "ab":
                for at in range(3):
                    self.keep(number, name, record(f"{name}{at}", float(at)))
            self.close(number)
            return made

    book = Busy(spec())
    for window in range(3):
        for arm in "ab":
            for at in range(3):
                book.keep(window, arm, record(f"{arm}{at}", float(at)))
        book.close(window)
    runs = book.runs()
    assert [len(some) for some in runs.values()] == [3, 3] and len(book.pairs) == 9


def test_a_page_on_live_traffic_says_nothing_of_equal_arrivals() -> None:
    """Requests of two windows have nothing to do with each other, and came when their clients liked."""
    report, runs = filled(1.5).report({}, "w")
    told = page(report, {LEVEL: runs}, limits=False, played=False)
    wrong = ("all at once", "the same arrivals", "of the first pair were started", "requests per run", "seeds differ")
    assert [words for words in wrong if words in told] == []
    assert "8 pairs of windows" in told and "requests kept" in told
    assert all(words in page(report, {LEVEL: runs}, limits=False) for words in ("all at once", "the same arrivals"))
