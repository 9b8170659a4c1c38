"""Launcher of the draw of tokens; conventions as in ``launch``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .launch import Array, MakeModule, address
from .names import sample_instance
from .source import unit

#: What ``states`` says of a row: drawn; its logits hold a NaN, +inf, or nothing but -inf.
DRAWN, NAN, POSITIVE, NEGATIVE = 0, 2, 3, 4


class Sampling:
    """The standard sampler's draw, to the token, in one kernel for any mix of parameters."""

    def __init__(self, make: MakeModule, options: Sequence[str] = ()) -> None:
        self.instance = sample_instance()
        module = make(code=unit("sample.cu"), options=tuple(options), name_expressions=[self.instance.name])
        self._function = module.get_function(self.instance.name)

    def sample(
        self,
        ids: Array,
        states: Array,
        logits: Array,
        temperature: Array,
        top_k: Array,
        top_p: Array,
        min_p: Array,
        uniform: Array,
        *,
        rows: int,
        vocab: int,
    ) -> None:
        """``ids`` and ``states`` int32 ``[rows]`` from ``logits`` float32 ``[rows, vocab]``; banned tokens are -inf.

        Parameters ``[rows]``: ``temperature`` float64, 0 for the best token of the lowest id; ``top_k`` int32, 0 or the
        vocabulary: off; ``top_p`` float64, 1: off; ``min_p`` float64, 0: off; ``uniform`` float64 in [0, 1).
        """
        args = (
            address(ids), address(states), address(logits), address(temperature), address(top_k), address(top_p),
            address(min_p), address(uniform), np.int32(vocab), np.int32(62 - vocab.bit_length()),
        )  # fmt: skip
        if rows:
            self._function((rows,), (self.instance.threads,), args, shared_mem=self.instance.shared_bytes)
