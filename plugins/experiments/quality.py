"""What the outputs themselves are like: variety and repetition, counted on token ids; and any metric's direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..workloads.metrics import Direction, direction

#: distinct_n: different n-grams by all n-grams, over the outputs of a run (Li and others, 2016).  repetition_n: n-grams
#: that stood in the same output before, by all.  They follow from the requests and their seeds, whenever these came.
QUALITY: dict[str, Direction] = {"distinct_1": "higher", "distinct_2": "higher", "repetition_4": "lower"}

#: Shares of tokens and of requests, not times.  When something comes moves them only as far as it moves the order.
COUNTED = frozenset({"hit_rate", "hit_share"})


def needs_time(metric: str) -> bool:
    """Whether a generator that was late makes the metric worthless."""
    return metric not in QUALITY and metric.partition("@")[0] not in COUNTED


def direction_of(metric: str) -> Direction:
    """``lower`` or ``higher`` is better.  Raises ConfigError for an unknown metric, naming the nearest."""
    return QUALITY.get(metric) or direction(metric)


def quality(outputs: Mapping[int, Sequence[int]]) -> dict[str, float | None]:
    """The figures of ``outputs`` (row -> token ids); None where there is no n-gram."""
    texts = [tuple(ids) for ids in outputs.values()]
    return {"distinct_1": _distinct(texts, 1), "distinct_2": _distinct(texts, 2), "repetition_4": _repeated(texts, 4)}


def _grams(text: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(text[at : at + n]) for at in range(len(text) - n + 1)]


def _distinct(texts: Iterable[Sequence[int]], n: int) -> float | None:
    grams = [gram for text in texts for gram in _grams(text, n)]
    return len(set(grams)) / len(grams) if grams else None


def _repeated(texts: Iterable[Sequence[int]], n: int) -> float | None:
    total = again = 0
    for text in texts:
        grams = _grams(text, n)
        total += len(grams)
        again += len(grams) - len(set(grams))
    return again / total if total else None
