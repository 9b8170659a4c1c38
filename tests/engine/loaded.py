"""The real model on one small pool, loaded once for many simulated engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.messages import Emit, StepLaunch, StepResult
from mainspring.core.policy import ExecutorInfo
from mainspring.plugins import settings
from mainspring.plugins.executors.torch import TorchExecutor

NUM_BLOCKS, BLOCK_SIZE, HOST_BLOCKS = 24, 4, 40
SWAP: dict[str, Any] = {"preempt": "swap", "host_blocks": HOST_BLOCKS}


def config(scheduler: settings.SchedulerConfig, allocator: str, **options: Any) -> settings.Config:
    """Float32 throughout; ``options`` are the allocator's."""
    return settings.Config(
        paranoid=True,
        scheduler=scheduler,
        allocator=AllocatorConfig(use=allocator, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, options=options),
        executor=ExecutorConfig(use="torch", dtype="fp32", weights="fp32", kv_dtype="fp32"),
    )


class Loaded:
    """Implements ``Executor`` for one run after the other; a pool that others have written to must not matter."""

    def __init__(self) -> None:
        self.inner = TorchExecutor(None, config(settings.SchedulerConfig(), "prefix", **SWAP))
        self.info = self.inner.load(lambda line: None)

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        return self.info

    def execute(self, launch: StepLaunch, sample: Any) -> StepResult:
        return self.inner.execute(launch, sample)

    def close(self) -> None:
        """Kept for the next run."""


def outputs(emitted: list[Emit]) -> dict[str, list[int]]:
    """Ids of each request in order."""
    made: dict[str, list[int]] = {}
    for emit in emitted:
        for row in emit.rows:
            made.setdefault(row.rid, []).extend(row.token_ids)
    return made
