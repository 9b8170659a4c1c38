"""Launchers of the draw of tokens and of what goes with it; conventions as in ``launch``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .launch import Array, MakeModule, address
from .names import sample_instances
from .source import unit

#: What ``states`` says of a row: drawn; its logits hold a NaN, +inf, or nothing but -inf.
DRAWN, NAN, POSITIVE, NEGATIVE = 0, 2, 3, 4


class Sampling:
    """The standard sampler's draw, to the token, in one kernel for any mix of parameters."""

    def __init__(self, make: MakeModule, options: Sequence[str] = ()) -> None:
        self.instances = sample_instances()
        module = make(code=unit("sample.cu"), options=tuple(options), name_expressions=list(self.instances))
        self._functions = {name: module.get_function(name) for name in self.instances}

    def _start(self, name: str, blocks: int, args: tuple[Any, ...]) -> None:
        if blocks:
            one = self.instances[name]
            self._functions[name]((blocks,), (one.threads,), args, shared_mem=one.shared_bytes)

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
        self._start("sample", rows, args)

    def ban(self, logits: Array, pairs: Array, *, num_pairs: int, vocab: int) -> None:
        """Make tokens impossible: ``pairs`` int32 ``[num_pairs, 2]`` of (row, id); a logit that is NaN stays."""
        args = (address(logits), address(pairs), np.int32(num_pairs), np.int32(vocab))
        self._start("ban_tokens", -(-num_pairs // 128), args)

    def take(self, ids: Array, drawn: Array, pairs: Array, *, num_pairs: int) -> None:
        """``ids[pairs[i, 0]] = drawn[pairs[i, 1]]``, all int32: the next step's inputs, as they were drawn."""
        args = (address(ids), address(drawn), address(pairs), np.int32(num_pairs))
        self._start("take_drawn", -(-num_pairs // 128), args)
