"""Decode steps as captured graphs, one for each size of batch: launching hundreds of small kernels costs the host more
time than the device takes to run them, launching a graph costs microseconds.

A graph replays the same kernels with the same arguments at the same addresses.  So a step of ``n`` rows of one token
each runs as one of the next larger size, its rows padded with empty ones; what differs from step to step (ids,
positions, slots, lengths, block tables) lies in memory that is written before the replay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from .batch import StepBatch
from .cupy_device import Replay


def bucket_sizes(most_rows: int) -> tuple[int, ...]:
    """Sizes of batches to capture for up to ``most_rows`` rows: no step is padded by more than 7 rows or a fifth."""
    out, size = [], 1
    while size < most_rows:
        out.append(size)
        size = size * 2 if size < 8 else size + 8 * max(1, size // 40)
    return (*out, most_rows)


class Captured(NamedTuple):
    """One size's graph and where its logits ``[size, vocab]`` appear."""

    replay: Replay
    logits: torch.Tensor


class DecodeGraphs:
    """Graphs by size of batch.  ``sizes`` are those captured, ascending."""

    def __init__(self) -> None:
        self._captured: dict[int, Captured] = {}
        self.sizes: list[int] = []

    def capture(
        self, size: int, forward: Callable[[], torch.Tensor], capture: Callable[[Callable[[], None]], Replay]
    ) -> None:
        """Keep what ``forward`` launches for ``size`` rows.  Its result must lie at the same address each time."""
        logits: list[torch.Tensor] = []

        def run() -> None:
            logits[:] = [forward()]

        replay = capture(run)
        self._captured[size] = Captured(replay, logits[0])
        self.sizes = sorted(self._captured)

    def clear(self) -> None:
        """Forget all graphs: memory that they name has moved."""
        self._captured.clear()
        self.sizes.clear()

    def size_of(self, batch: StepBatch) -> int | None:
        """The size to run ``batch`` as, None if it is no decode step: one token in every row, and every real row
        samples."""
        tokens, rows = batch.num_tokens, batch.num_rows
        if tokens != len(batch.context_lens) or not rows or not np.array_equal(batch.logits_rows, np.arange(rows)):
            return None
        at = bisect_left(self.sizes, tokens)
        return self.sizes[at] if at < len(self.sizes) else None

    def replay(self, size: int) -> torch.Tensor:
        """Launch the graph; logits ``[size, vocab]``."""
        captured = self._captured[size]
        captured.replay()
        return captured.logits
