"""An emulated device that computes nothing before somebody waits, and the executor on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from mainspring.core.messages import StepLaunch, StepResult
from mainspring.plugins.executors.cupy import CupyExecutor
from mainspring.plugins.executors.overlap import Pending

from .emulated import EmulatedDevice, Task


class Deferral(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators of torch wait for their turn on the device's queue, but those that only look at memory another way."""

    def __init__(self, device: DeferredDevice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or not self.queue.deferring:
            return func(*args, **kwargs)
        written = [given for given in _written(func, args, kwargs) if isinstance(given, torch.Tensor)]
        assert len(written) == 1, f"{func} allocates"
        self.queue.append(lambda: func(*args, **kwargs))
        return written[0]


class DeferredDevice(EmulatedDevice):
    """Nothing runs before somebody waits for it: what the host reads too early, or overwrites too early, is wrong."""

    def __init__(self, num_multiprocessors: int = 4, free_bytes: int = 2**34) -> None:
        super().__init__(num_multiprocessors, free_bytes)
        self.deferring, self.most_waiting = False, 0
        self._queue: deque[Task] = deque()
        self._taken = self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Launches within are queued, until something waits for all of them."""
        self.deferring, self._steps = True, self._steps + 1
        self.most_waiting = max(self.most_waiting, self._steps)
        try:
            with Deferral(self):
                yield
        finally:
            self.deferring = False

    def append(self, task: Task) -> None:
        self._queue.append(task)

    def mark(self) -> Callable[[], None]:
        until = self._taken + len(self._queue)
        return lambda: self._run(until)

    def ended(self) -> None:
        """A step's result was asked for."""
        self._steps -= 1

    def synchronize(self) -> None:
        super().synchronize()
        self.deferring = False
        self._run(self._taken + len(self._queue))

    def _run(self, until: int) -> None:
        with _disable_current_modes(), torch.inference_mode():
            while self._taken < until:
                self._queue.popleft()()
                self._taken += 1

    def capture(self, run: Task) -> Callable[[], None]:
        replay = super().capture(run)
        return lambda: self.append(replay) if self.deferring else replay()

    def launch(self, name: str, task: Task) -> None:
        if not self.deferring:
            super().launch(name, task)
            return
        self.log.append(name.partition("<")[0])
        self.append(task)


class DeferredExecutor(CupyExecutor):
    """On a ``DeferredDevice``."""

    def begin(self, launch: StepLaunch, sample: Any, alone: bool = False) -> Any:
        device = self._device
        assert isinstance(device, DeferredDevice)
        with device.step():
            begun = super().begin(launch, sample, alone)
        if isinstance(begun, StepResult):
            device.ended()
            return begun
        return DeferredResult(device, begun)


@dataclass
class DeferredResult:
    """Implements ``overlap.Pending``."""

    device: DeferredDevice
    begun: Pending

    def result(self) -> StepResult:
        made = self.begun.result()
        self.device.ended()
        return made


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Arguments that an operator writes to."""
    given = dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | kwargs
    return [given.get(one.name) for one in func._schema.arguments if one.alias_info and one.alias_info.is_write]
