"""How long a step takes, learned from the steps that ran."""

from __future__ import annotations


class StepTime:
    """Running estimate of step time, ``a + b * tokens``: least squares with older steps fading by ``FADE``."""

    FADE = 0.98

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self._last = 1, 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        fade, self._last = self.FADE, (num_tokens, seconds)
        self._n = fade * self._n + 1.0
        self._x = fade * self._x + num_tokens
        self._y = fade * self._y + seconds
        self._xx = fade * self._xx + num_tokens * num_tokens
        self._xy = fade * self._xy + num_tokens * seconds

    def __call__(self, num_tokens: int) -> float:
        """Seconds expected for a step of ``num_tokens``; 0 before anything was seen."""
        spread = self._n * self._xx - self._x * self._x
        if spread <= 1e-9 * self._n * self._xx:  # one size only so far: proportional
            return self._y / self._x * num_tokens if self._x else 0.0
        slope = max(0.0, (self._n * self._xy - self._x * self._y) / spread)
        return max(0.0, (self._y - slope * self._x) / self._n) + slope * num_tokens

    def after_the_last(self, num_tokens: int) -> float:
        """Seconds for a step of ``num_tokens`` if it takes as long as the last one, or longer in proportion to its
        tokens; 0 before anything was seen.  Knows about the moment what the running estimate does not: how long the
        contexts are now, and not how long a prompt took a while ago."""
        tokens, seconds = self._last
        return seconds * max(1.0, num_tokens / tokens)
