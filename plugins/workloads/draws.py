"""The distributions that scenarios are drawn from, and the arithmetic of prompts that share blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Rng = np.random.Generator


def generator(seed: int, name: str) -> Rng:
    """A generator of its own for each scenario and seed, so that no scenario repeats the draws of another."""
    return np.random.default_rng([seed, *name.encode()])


def lognormal(rng: Rng, median: float, sigma: float, least: int = 1, most: float = math.inf) -> int:
    """A whole number, lognormal around ``median``, within ``least`` and ``most``."""
    return int(max(least, min(most, round(median * math.exp(sigma * rng.standard_normal())))))


def lognormal_s(rng: Rng, median_s: float, sigma: float, most_s: float) -> float:
    """Seconds, lognormal around ``median_s``, at most ``most_s``."""
    return float(min(most_s, median_s * math.exp(sigma * rng.standard_normal())))


def log_uniform(rng: Rng, least: float, most: float) -> int:
    """A whole number, uniform in its logarithm."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


def pareto(rng: Rng, alpha: float, least: float, most: float) -> int:
    """A whole number from a Pareto tail of exponent ``alpha`` that starts at ``least``, cut at ``most``."""
    return int(min(most, round(least * (1.0 - rng.random()) ** (-1.0 / alpha))))


def zipf_choices(rng: Rng, count: int, groups: int, exponent: float = 1.0) -> list[int]:
    """``count`` groups from 0 (most popular), the k-th with weight 1 / (k + 1) ^ exponent."""
    weights = 1.0 / np.arange(1, groups + 1) ** exponent
    return [int(choice) for choice in rng.choice(groups, size=count, p=weights / weights.sum())]


def poisson(rng: Rng, count: int, rate_per_s: float) -> list[float]:
    """Arrival times of a Poisson process, the first at 0."""
    return gamma_gaps(rng, count, rate_per_s, 1.0)


def gamma_gaps(rng: Rng, count: int, rate_per_s: float, shape: float) -> list[float]:
    """Arrival times with gamma gaps (CV = 1 / sqrt(shape)), the first at 0."""
    gaps = rng.gamma(shape, 1.0 / (rate_per_s * shape), max(0, count - 1))
    return [0.0, *np.cumsum(gaps).tolist()][:count]


def on_off(rng: Rng, count: int, rate_per_s: float, on_s: float, off_s: float) -> list[float]:
    """Poisson arrivals in windows of ``on_s`` with nothing for ``off_s`` between them; ``rate_per_s`` is the mean."""
    busy = poisson(rng, count, rate_per_s * (on_s + off_s) / on_s)
    return [at + math.floor(at / on_s) * off_s for at in busy]


class Ids:
    """Hands out block ids: every stretch of tokens gets its own, so that equal ids mean equal content."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> tuple[int, ...]:
        """``count`` ids that nobody has."""
        first, self._next = self._next, self._next + count
        return tuple(range(first, self._next))


class Stream:
    """A text that grows and whose every prompt is a beginning of it: a conversation, a session, a path in a tree.

    ``shared`` blocks come first and may be those of others.
    """

    def __init__(self, ids: Ids, block_tokens: int, shared: Sequence[int] = ()) -> None:
        self._ids, self._size, self._blocks = ids, block_tokens, list(shared)

    def first(self, tokens: int) -> tuple[int, ...]:
        """Ids of the blocks of the first ``tokens``."""
        count = -(-tokens // self._size)
        self._blocks += self._ids.take(max(0, count - len(self._blocks)))
        return tuple(self._blocks[:count])

    def branch(self, tokens: int) -> Stream:
        """Another stream with the same whole blocks of the first ``tokens`` and then its own."""
        return Stream(self._ids, self._size, self.first(tokens - tokens % self._size))
