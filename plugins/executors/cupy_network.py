"""A network on a device: steps as they come, decode steps as captured graphs."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ..models.llama import Llama
from .batch import StepBatch
from .cupy_batch import CupyBatch
from .cupy_draw import Drawn, Draws
from .cupy_graphs import DecodeGraphs, bucket_sizes
from .cupy_ops import CupyOps

#: Bytes that a step may save by reading a shared beginning once, from which on it runs kernel by kernel instead of as
#: a graph: what a large device reads in the two milliseconds that launching its kernels one by one takes longer.
WORTH_LAUNCHING = 8 * 2**30


class CupyNetwork:
    """Implements ``loaded.Network``.  Logits are good until the next step; nothing here waits for the device but the
    taking of memory."""

    def __init__(self, model: Llama, ops: CupyOps, most_tokens: int, most_rows: int, graphs: bool) -> None:
        """Takes the memory of steps of up to ``most_tokens`` in ``most_rows`` rows, and captures decode steps up to
        that many rows if ``graphs``.  Call it, and everything else, in inference mode."""
        self.model, self.ops, self.draws = model, ops, Draws(ops.device)
        self.graphs = DecodeGraphs()
        self._wants_graphs, self._most_tokens, self._most_rows = graphs, len(_TRIAL.ids), _TRIAL.num_rows
        self._make_room(most_tokens, most_rows)

    def forward(self, batch: StepBatch, before: Drawn | None = None) -> torch.Tensor | None:
        """See ``Network.forward``.  ``before``: whose ids some of the step's tokens are, as ``draws.bring`` was
        told."""
        num_rows = len(batch.context_lens)
        if batch.num_tokens > self._most_tokens or num_rows > self._most_rows:
            self._make_room(batch.num_tokens, num_rows)  # an allocator without a cache computes whole contexts
        size = self.graphs.size_of(batch)
        if size and self.ops.saved_bytes(batch) < WORTH_LAUNCHING:
            self._take(self.ops.prepare_decode(batch, size), before)
            return self.graphs.replay(size)[: batch.num_rows]
        step = self.ops.prepare(batch)
        self._take(step, before)
        return self.model.forward(step)

    def _take(self, step: CupyBatch, before: Drawn | None) -> None:
        if before is not None:
            self.draws.take(step.ids, before)

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """See ``Network.copy_blocks``."""
        self.ops.copy_blocks(copies)

    def _make_room(self, num_tokens: int, num_rows: int) -> None:
        self._most_tokens, self._most_rows = max(self._most_tokens, num_tokens), max(self._most_rows, num_rows)
        self.ops.device.synchronize()  # what was launched before uses the memory that is given up now
        self.graphs.clear()
        self.ops.reserve(self._most_tokens, self._most_rows)
        self.draws.reserve(self._most_rows)
        self.model.forward(self.ops.prepare(_TRIAL))  # asks for every buffer
        self.ops.device.synchronize()
        for size in reversed(bucket_sizes(self._most_rows)) if self._wants_graphs else ():
            step = self.ops.prepare_decode(_NOTHING, size)
            self.graphs.capture(size, partial(self._logits, step), self.ops.device.capture)

    def _logits(self, step: CupyBatch) -> torch.Tensor:
        logits = self.model.forward(step)
        assert logits is not None
        return logits


def _step(counts: tuple[int, ...], logits_rows: tuple[int, ...]) -> StepBatch:
    """Rows of these counts over block 0, which write nothing."""
    starts = np.cumsum((0, *counts)).astype(np.int32)
    tokens = np.zeros(starts[-1], np.int32)
    return StepBatch(
        ids=tokens,
        positions=tokens,
        slot_mapping=tokens - 1,
        cu_seqlens=starts,
        context_lens=np.asarray(counts, np.int32),
        block_tables=np.zeros((len(counts), max(counts, default=1)), np.int32),
        logits_rows=np.asarray(logits_rows, np.int32),
        num_rows=len(counts),
        sampling_rids=(),
    )


#: A row of one token, one of two, and only one that samples; and no row at all.
_TRIAL, _NOTHING = _step((1, 2), (2,)), _step((), ())
