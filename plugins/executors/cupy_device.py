"""The graphics processor: found and checked, kernels compiled for it and launched on torch's stream, steps captured.

Only this module imports CuPy.  Whatever an operator can mend is a ConfigError that says how: nothing falls back to
another device in silence.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ...core.errors import ConfigError, EngineFault

#: Compute capability that NVRTC, CuPy and torch still know in their newest versions.
LEAST_CAPABILITY = (7, 5)
#: From this one on there are cp.async and matrix instructions for bf16, which the kernels for tensor cores are made of.
TENSOR_CORES = (8, 0)
#: Dynamic shared memory, in bytes, above which a kernel has to be told.
_DEFAULT_SHARED = 48 * 1024

Replay = Callable[[], None]
#: Returns when all that was launched up to some moment is done.  On any thread.
Wait = Callable[[], None]


class Device(Protocol):
    """What ``cupy_ops`` and its neighbours need of a device; the CPU emulator of the tests is one, too."""

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""

    @property
    def description(self) -> str:
        """For people."""

    @property
    def num_multiprocessors(self) -> int: ...

    @property
    def tensor_cores(self) -> bool:
        """Whether it runs the kernels that need compute capability 8.0, and multiplies bf16 natively."""

    @property
    def raw_module(self) -> Callable[..., Any]:
        """Called like CuPy's RawModule, with ``code``, ``options`` and ``name_expressions`` as keywords: kernels whose
        ``get_function(name)(grid, block, args, shared_mem=)`` launches on torch's current stream."""

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Zeros in memory of the host that the device reads and writes."""

    def free_bytes(self) -> int:
        """Memory of the device that could still be taken."""

    def synchronize(self) -> None:
        """Wait until everything launched is done.  Raises what went wrong there."""

    def mark(self) -> Wait:
        """What waits for everything launched until now.  Raises what went wrong there."""

    def capture(self, run: Callable[[], None]) -> Replay:
        """Run once, keep all it launches, and return what launches that again: same kernels, same addresses."""


def find_device(index: int = 0) -> CudaDevice:
    """The CUDA device ``index``, checked.  Raises ConfigError saying what is missing and how to get it."""
    if trouble := device_trouble(index):
        raise ConfigError(f"executor.use = 'cupy': {trouble}")
    return CudaDevice(index, importlib.import_module("cupy"))


def device_trouble(index: int = 0) -> str | None:
    """Why the CUDA device ``index`` cannot be used, and how to mend it; None if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA: install one of its CUDA builds"
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) finds no CUDA device: is the driver installed and "
            "new enough, and does CUDA_VISIBLE_DEVICES hide the device?"
        )
    if index >= (count := torch.cuda.device_count()):
        return f"executor.options.device = {index}, and this machine has {count} CUDA device(s), numbered from 0"
    if (capability := torch.cuda.get_device_capability(index)) < LEAST_CAPABILITY:
        have, need = (".".join(map(str, version)) for version in (capability, LEAST_CAPABILITY))
        name = torch.cuda.get_device_name(index)
        return f"{name} has compute capability {have}, and the kernels need at least {need}"
    return _cupy_trouble(f"pip install 'mainspring[cuda{str(torch.version.cuda).split('.')[0]}]'")


def _cupy_trouble(mend: str) -> str | None:
    try:
        cupy = importlib.import_module("cupy")
    except ModuleNotFoundError as error:
        return f"CuPy is not installed: {mend}" if error.name == "cupy" else f"CuPy cannot be imported: {error}"
    except Exception as error:  # noqa: BLE001 - a broken installation fails in many ways
        return f"CuPy cannot be imported: {type(error).__name__}: {error}"
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (
            f"CuPy {cupy.__version__} cannot use the driver: {error}; it should be made for the same major version of "
            f"CUDA as torch ({torch.version.cuda}): {mend}"
        )
    return None


class CudaDevice:
    """Implements ``Device``.  Made, and used, on one thread."""

    def __init__(self, index: int, cupy: Any) -> None:
        torch.cuda.set_device(index)
        cupy.cuda.Device(index).use()
        self.device, self._cupy = torch.device("cuda", index), cupy
        facts = torch.cuda.get_device_properties(index)
        self.num_multiprocessors: int = facts.multi_processor_count
        self.tensor_cores = (facts.major, facts.minor) >= TENSOR_CORES
        self.description = f"{facts.name}, compute capability {facts.major}.{facts.minor}, CuPy {cupy.__version__}"
        self._streams: dict[int, Any] = {}
        # One stream and one pool for all captures: cuBLAS keeps tens of megabytes for each stream that it has seen.
        self._side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def raw_module(self, **arguments: Any) -> CudaModule:
        """See ``Device.raw_module``.  The compiled result is kept in CuPy's cache folder."""
        return CudaModule(self._cupy, self._stream, **arguments)

    def _stream(self) -> Any:
        """CuPy's name for torch's current stream."""
        current = torch.cuda.current_stream(self.device)
        known = self._streams.get(current.cuda_stream)
        if known is None:
            stream = self._cupy.cuda.Stream
            if hasattr(current, "__cuda_stream__") and hasattr(stream, "from_external"):
                known = stream.from_external(current)
            else:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # the only way for an older torch
                    known = self._cupy.cuda.ExternalStream(current.cuda_stream, self.device.index)
            self._streams[current.cuda_stream] = known
        return known

    def host_memory(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def free_bytes(self) -> int:
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)  # by torch, for reuse
        return int(torch.cuda.mem_get_info(self.device)[0]) + kept

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.device).synchronize()

    def mark(self) -> Wait:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))

        def wait() -> None:
            with torch.cuda.device(self.device):  # of the thread that waits, which may be another
                event.synchronize()

        return wait

    def capture(self, run: Callable[[], None]) -> Replay:
        side, current = self._side, torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            run()  # libraries take their memory, and modules are loaded, at a kernel's first launch on a stream
        current.wait_stream(side)
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            run()
        self._pool = self._pool or graph.pool()
        replay: Replay = graph.replay
        return replay


class CudaModule:
    """Kernels compiled by NVRTC for the current device."""

    def __init__(
        self,
        cupy: Any,
        stream: Callable[[], Any],
        *,
        code: str,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] = (),
    ) -> None:
        self._stream = stream
        options = ("-std=c++17", *options)
        self._module = cupy.RawModule(code=code, options=options, name_expressions=tuple(name_expressions))
        try:
            self._module.compile()
        except Exception as error:  # of CuPy's compiler, of its loader, or that NVRTC is missing
            names = "\n".join(name_expressions)
            raise EngineFault(f"kernels do not compile for this device:\n{error}\nkernels:\n{names}") from error

    def get_function(self, name: str) -> Callable[..., None]:
        """See ``Device.raw_module``."""
        function, stream = self._module.get_function(name), self._stream
        allowed = _DEFAULT_SHARED

        def launch(
            grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
        ) -> None:
            nonlocal allowed
            if shared_mem > allowed:
                function.max_dynamic_shared_size_bytes = allowed = shared_mem
            function(grid, block, args, shared_mem=shared_mem, stream=stream())

        return launch
