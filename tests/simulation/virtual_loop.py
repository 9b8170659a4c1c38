"""The asyncio driver under a manual clock: the real kernel on an event loop whose time is virtual.

Nothing sleeps: when nobody is ready, the clock goes to the next timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec

from mainspring.core.config import Config
from mainspring.core.kernel import Kernel
from mainspring.core.messages import Emit, Message, StepLaunch, Submit
from mainspring.core.policy import Executor, ExecutorInfo, SampleOutput
from mainspring.core.registry import Registry
from mainspring.core.router import Tap
from mainspring.plugins.manual_clock import ManualClock


class VirtualSelector(selectors.SelectSelector):
    """Moves the clock instead of waiting."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "the loop would wait for ever"
            self._clock.advance_to(self._clock.now() + max(0.0, timeout))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(VirtualSelector(clock))
        self._clock = clock

    def time(self) -> float:
        return self._clock.now()


class VirtualExecutor:
    """Implements ``core.edge.ExecutorEdge`` without a thread: results are posted when their step has ended."""

    def __init__(self, kernel: Kernel, executor: Executor, seconds: Callable[[StepLaunch], float]) -> None:
        self._kernel, self._executor, self._seconds = kernel, executor, seconds
        self._sample: Callable[[Any, Any], SampleOutput] | None = None
        self._free_at = 0.0
        self._events: list[tuple[float, int, Message]] = []
        self._order = count()

    async def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        return self._executor.load(progress)

    def serve(self, sample: Callable[[Any, Any], SampleOutput]) -> None:
        self._sample = sample

    def deliver(self, message: Message) -> None:
        assert isinstance(message, StepLaunch) and self._sample is not None
        result = self._executor.execute(message, self._sample)
        if not message.rows:
            return
        launched = max(self._kernel.now(), self._free_at)
        self._free_at = launched + self._seconds(message)
        made = msgspec.structs.replace(result, launched=launched, finished=self._free_at)
        heappush(self._events, (self._free_at, next(self._order), made))
        asyncio.get_running_loop().call_at(self._free_at, self._due)

    def _due(self) -> None:
        """A timer may come a hair early: the moment of the event is what counts."""
        moment, _, message = heappop(self._events)
        clock = self._kernel.clock
        assert isinstance(clock, ManualClock)
        clock.advance_to(max(moment, clock.now()))
        self._kernel.post(message)

    def stalled_for(self) -> float:
        return 0.0

    def abandon(self) -> None:
        raise AssertionError("nothing fails here")

    async def close(self) -> None:
        self._executor.close()


def run_on_asyncio(
    config: Config,
    executor: Executor,
    seconds: Callable[[StepLaunch], float],
    arrivals: Sequence[tuple[float, Sequence[Submit]]],
    taps: Sequence[Tap],
    registry: Registry | None = None,
) -> None:
    """Play ``arrivals`` (moment, requests that come together) to the end of all requests."""
    clock = ManualClock()
    ends = 0

    def count_ends(message: Message, now: float) -> None:
        nonlocal ends
        if isinstance(message, Emit):
            ends += sum(row.finish is not None for row in message.rows)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        kernel = Kernel(
            config,
            registry or Registry(),
            clock,
            lambda made: VirtualExecutor(made, executor, seconds),
            taps=[count_ends, *taps],
        )
        async with kernel.running():
            for moment, submits in arrivals:
                loop.call_at(moment, kernel.post, *submits)
            total = sum(len(submits) for _, submits in arrivals)
            while ends < total:
                await asyncio.sleep(1.0)
            assert kernel.actors is not None
            kernel.actors.check()

    loop = VirtualLoop(clock)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
