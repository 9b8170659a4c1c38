"""What a turn of the live engine takes beyond what host, policy, allocator and sampler compute in a loop by themselves.

Between two steps the result crosses from the executor's thread to the event loop's and the next launch crosses back,
and whatever runs finds its caches emptied by the model.  Seen as the time from the end of a step to the start of the
next, of the real executor behind the real kernel, while nobody comes or goes.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

from ...core.clock import MonotonicClock
from ...core.config import Config
from ...core.edge import KernelPort
from ...core.kernel import Kernel
from ...core.messages import Emit, Message, SamplingParams, StepLaunch, StepResult, Submit
from ...core.policy import Executor
from ...core.registry import Registry
from .. import event_loop
from ..executors.thread import ExecutorThread
from .fit import nnls
from .policy_cost import PolicyCost
from .turn_cost import PROMPT, turn_us

#: Numbers of requests that run, and tokens that each of them makes.
CROWDS, TOKENS = (1, 4, 16, 32), 24
POLICY = "fcfs"


class Crowd:
    """The edge: ``count`` requests at once; and the tap that takes the time between steps that are all decoding."""

    name = "crowd"
    consumes: tuple[type[Message], ...] = (Emit,)

    def __init__(self, count: int) -> None:
        self._count, self._left = count, count
        self._full: set[int] = set()
        self._before: StepResult | None = None
        self.done = asyncio.Event()
        self.gaps_us: list[float] = []

    async def start(self, port: KernelPort) -> None:
        """Nothing to get ready."""

    async def run(self, port: KernelPort) -> None:
        sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        vocab = port.info.vocab_size - 40
        for number in range(self._count):
            ids = tuple(20 + (at * 7919 + number * 104_729) % vocab for at in range(PROMPT))
            port.post(Submit(f"t{number}", ids, sampling, forced_length=TOKENS))
        await asyncio.Event().wait()

    async def flush(self) -> None:
        """Nothing waits here."""

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Emit)
        self._left -= sum(row.finish is not None for row in message.rows)
        if self._left <= 0:
            self.done.set()

    def see(self, message: Message, now: float) -> None:
        if isinstance(message, StepLaunch):
            if len(message.rows) == self._count and all(row.count == 1 for row in message.rows):
                self._full.add(message.step)
        elif isinstance(message, StepResult):
            before, self._before = self._before, message
            if before is not None and {before.step, message.step} <= self._full:
                self.gaps_us.append((message.launched - before.finished) * 1e6)


async def _gap_us(config: Config, registry: Registry, executor: Executor, count: int) -> float | None:
    """Median microseconds between steps of ``count`` requests; None if they were never all at it."""
    crowd = Crowd(count)
    kernel = Kernel(
        config,
        registry,
        MonotonicClock(),
        lambda made: ExecutorThread(executor, made.post_threadsafe, made.now),
        [crowd],
        [crowd.see],
        progress=lambda _line: None,
    )
    async with kernel.running():
        await crowd.done.wait()
    return statistics.median(crowd.gaps_us) if len(crowd.gaps_us) > 2 else None


def beyond(config: Config, registry: Registry, executor: Executor, num_tokens: int) -> PolicyCost:
    """The formula of the difference, in microseconds by running requests.  ``executor`` must survive its kernels; its
    pool has ``num_tokens``."""
    most = min(config.scheduler.max_running, num_tokens // (2 * (PROMPT + TOKENS)))
    scheduler = msgspec.structs.replace(config.scheduler, use=POLICY, options={}, wrap=(), depth=1)
    alone = msgspec.structs.replace(config, scheduler=scheduler)
    found: list[tuple[int, float]] = []
    for count in (count for count in CROWDS if count <= most):
        gap = event_loop.run(_gap_us(alone, registry, executor, count))
        if gap is not None:
            found.append((count, max(0.0, gap - turn_us(registry, POLICY, count, 0))))
    return _fitted(found)


def _fitted(found: Sequence[tuple[int, float]]) -> PolicyCost:
    if not found:
        return PolicyCost()
    weight = 1.0 / np.asarray([max(us, 1.0) for _, us in found])
    matrix = np.asarray([(1.0, count) for count, _ in found]) * weight[:, None]
    a, b = (float(value) for value in nnls(matrix, np.asarray([us for _, us in found]) * weight))
    return PolicyCost(a_us=round(a, 3), b_us=round(b, 4))
