"""The three forms of step time.  All coefficients are non-negative seconds, per step, token or token pair.

``linear``     T = c0 + c1 P + c2 D + c3 K + c4 A
``max``        T = c0 + max(f, c1 (P + D)) + c2 D + c3 K + c4 A: weights must be read (f) however few tokens there are
``piecewise``  T = c0 + g(P + D) + c2 D + c3 K + c4 A, g linear between knots and non-decreasing: the matrix products of
               a machine that computes some batch sizes better than others

P prefill tokens, D decode sequences, K KV tokens read by decode, A prefill attention (``features``).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from .features import Features

FormName = Literal["linear", "max", "piecewise"]
Floats = NDArray[np.float64]


class StepForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fitted model.  Calling it with features gives seconds.

    ``knots`` are token counts from 0 and ``slopes`` the seconds per token from each knot on (``piecewise`` only).
    """

    form: FormName
    c0: float = 0.0
    c1: float = 0.0
    c2: float = 0.0
    c3: float = 0.0
    c4: float = 0.0
    floor: float = 0.0
    knots: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()

    def __call__(self, features: Features) -> float:
        prefill, decode, kv, attention = features
        rest = self.c0 + self.c2 * decode + self.c3 * kv + self.c4 * attention
        if self.form == "linear":
            return rest + self.c1 * prefill
        tokens = prefill + decode
        if self.form == "max":
            return rest + max(self.floor, self.c1 * tokens)
        return rest + self._pieces(tokens)

    def _pieces(self, tokens: float) -> float:
        seconds, last = 0.0, bisect_right(self.knots, tokens) - 1
        for index in range(last + 1):
            end = tokens if index == last else self.knots[index + 1]
            seconds += self.slopes[index] * (end - self.knots[index])
        return seconds

    def many(self, features: Floats) -> Floats:
        """Seconds of each row of ``[n, 4]`` features."""
        return np.asarray([self(Features(*row)) for row in features.tolist()], np.float64)
