"""The CPU emulator of CUDA kernels as a device that ``CupyOps`` and the executor run on, graphs included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.emulator.module import RawModule
from torch.utils._python_dispatch import TorchDispatchMode

Task = Callable[[], Any]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps every operator of torch that runs under it, with its arguments as they are.

    Fails on one whose result lies in memory that none of its arguments had: a step must not allocate.
    """

    def __init__(self, tasks: list[Task]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tasks = tasks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        given = {_memory(one) for one in _tensors((args, kwargs))}
        fresh = [one for one in _tensors(out) if _memory(one) not in given]
        assert not fresh, f"{func} allocates"
        self.tasks.append(lambda: func(*args, **kwargs))
        return out


class EmulatedDevice:
    """Implements ``cupy_device.Device``.  ``log`` has the name of every kernel that was launched, in order."""

    device = torch.device("cpu")
    description = "CUDA emulated on the CPU"
    tensor_cores = True

    def __init__(self, num_multiprocessors: int = 4, free_bytes: int = 2**34) -> None:
        self.num_multiprocessors, self._free_bytes = num_multiprocessors, free_bytes
        self.log: list[str] = []
        self.captured = 0
        self._recording: list[Task] | None = None

    def raw_module(self, **arguments: Any) -> LoggedModule:
        return LoggedModule(self, RawModule(**arguments))

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def free_bytes(self) -> int:
        return self._free_bytes

    def synchronize(self) -> None:
        assert self._recording is None, "nothing waits for the device while a graph is captured"

    def mark(self) -> Callable[[], None]:
        return self.synchronize

    def capture(self, run: Task) -> Callable[[], None]:
        """The tasks are run at once, as a warm-up would; a graph on a device only records them."""
        tasks: list[Task] = []
        self._recording = tasks
        self.captured += 1
        try:
            with Recorder(tasks):
                run()
        finally:
            self._recording = None

        def replay() -> None:
            for task in tasks:
                task()

        return replay

    def launch(self, name: str, task: Task) -> None:
        self.log.append(name.partition("<")[0])
        task()
        if self._recording is not None:
            self._recording.append(task)


class LoggedModule:
    """A module whose launches go through the device."""

    def __init__(self, device: EmulatedDevice, module: RawModule) -> None:
        self._device, self._module = device, module

    def get_function(self, name: str) -> Callable[..., None]:
        kernel = self._module.get_function(name)

        def start(grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
            self._device.launch(name, lambda: kernel(grid, block, args, shared_mem=shared_mem))

        return start


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for one in value for found in _tensors(one)] if isinstance(value, list | tuple) else []


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
