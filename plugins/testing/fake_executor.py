"""An executor without a model that still notices every mistake in memory management.

Its KV cache holds the token id written to each slot.  The next id is a checksum over the whole context *as read back
through the block table*, so a wrong slot, a stolen block, a lost copy or a stale prefix changes the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.messages import GrantedRow, StepLaunch, StepResult
from ...core.policy import ExecutorInfo, SampleOutput

#: (rid, position of the new token, checksum) -> token id
Script = Callable[[str, int, int], int]
#: (rid, position of the new token) -> logits, one float per token id
Logits = Callable[[str, int], Any]
POISON = -(10**9)


def expected_ids(prompt: tuple[int, ...], count: int, vocab_size: int = 1000, first_id: int = 2) -> list[int]:
    """The ids an undisturbed request gets from :class:`FakeExecutor` without a script."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(_next_id(np.asarray(ids, np.int64), vocab_size, first_id))
    return ids[len(prompt) :]


def _checksum(context: np.ndarray) -> int:
    weights = np.arange(1, len(context) + 1, dtype=np.int64) * 2654435761 % 1000003
    return int((context * weights).sum() % 2147483647)


def _next_id(context: np.ndarray, vocab_size: int, first_id: int) -> int:
    return first_id + _checksum(context) % (vocab_size - first_id)


class FakeExecutor:
    """Implements ``core.policy.Executor``.  Ids below ``first_id`` never come from the checksum (end ids live there).

    ``on_step(launch)`` runs inside ``execute``, on the executor's thread: sleep, raise or hang there.  ``step_s`` may
    be changed at any time: seconds that a step takes on that thread.  With ``logits`` the sampler's array half draws
    from float32 rows ``[num_sampling_rows, vocab]`` made by ``tensor`` (numpy unless given; ``torch.from_numpy`` for
    samplers that need torch).  ``num_host_blocks`` blocks behind the pool hold what preempted requests had computed.
    """

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 16,
        vocab_size: int = 1000,
        max_context: int = 4096,
        end_token_ids: tuple[int, ...] = (0,),
        script: Script | None = None,
        on_step: Callable[[StepLaunch], None] | None = None,
        now: Callable[[], float] = lambda: 0.0,
        first_id: int = 2,
        step_s: float = 0.0,
        logits: Logits | None = None,
        tensor: Callable[[np.ndarray], Any] = np.asarray,
        num_host_blocks: int = 0,
    ) -> None:
        self.info = ExecutorInfo("fake", vocab_size, max_context, end_token_ids, num_blocks)
        self.launches: list[StepLaunch] = []
        self._block_size, self._script, self._on_step, self._now = block_size, script, on_step, now
        self._first_id, self._logits, self._tensor = first_id, logits, tensor
        self.step_s = step_s
        self._kv = np.full((num_blocks + num_host_blocks) * block_size, POISON, np.int64)
        self._last: dict[str, int] = {}

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        progress("fake executor")
        return self.info

    def close(self) -> None:
        """Nothing to free."""

    @property
    def num_remembered(self) -> int:
        """Requests whose last id is still kept."""
        return len(self._last)

    def execute(self, launch: StepLaunch, sample: Callable[[Any, Any], SampleOutput]) -> StepResult:
        started = self._now()
        if self._on_step:
            self._on_step(launch)
        if self.step_s:
            time.sleep(self.step_s)
        self.launches.append(launch)
        blocks = self._kv.reshape(-1, self._block_size)
        for source, target in launch.copies:
            blocks[target] = blocks[source]
        for row in launch.rows:  # all writes before all reads, as every backend does within a layer
            known = (self._last[row.rid],) if row.token_ids is None else row.token_ids
            assert len(known) == row.count == len(row.slot_mapping), row
            self._kv[list(row.slot_mapping)] = known
        rids = [row.rid for row in launch.rows if row.samples]
        ids = [self._next(row) for row in launch.rows if row.samples]
        failed: list[tuple[int, str]] = []
        if self._logits is not None and rids:
            ids, failed = self._draw(launch, self._logits, sample)
        self._last.update(zip(rids, ids, strict=True))
        for rid in launch.released:
            self._last.pop(rid, None)
        return StepResult(
            launch.step,
            tuple(rids),
            tuple(ids),
            tuple((rids[at], why) for at, why in failed),
            launched=started,
            finished=self._now(),
        )

    def _draw(self, launch: StepLaunch, logits: Logits, sample: Callable[[Any, Any], SampleOutput]) -> SampleOutput:
        rows = [logits(row.rid, row.start + row.count) for row in launch.rows if row.samples]
        return sample(self._tensor(np.asarray(rows, np.float32)), launch.sampling)

    def _next(self, row: GrantedRow) -> int:
        length = row.start + row.count
        slots = (np.asarray(row.block_table)[:, None] * self._block_size + np.arange(self._block_size)).ravel()[:length]
        context = self._kv[slots]
        assert max(row.block_table) < self.info.num_blocks, f"{row.rid} computes in host blocks"
        assert (context != POISON).all(), f"{row.rid} reads a slot that was never written"
        if self._script is not None:
            return self._script(row.rid, length, _checksum(context))
        return _next_id(context, self.info.vocab_size, self._first_id)
