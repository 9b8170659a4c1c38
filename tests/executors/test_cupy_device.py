"""What the search for a CUDA device says when there is none, and how kernels are compiled and launched on one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from mainspring.core.errors import ConfigError, EngineFault
from mainspring.plugins.executors.cupy_device import CudaDevice, CudaModule, device_trouble, find_device


class Compiler(Exception):
    """CuPy's error carries the compiler's whole text."""


class DriverTooOld(Exception):
    pass


def fake_cupy(fails: Exception | None = None) -> Any:
    def get_device_count() -> int:
        if fails:
            raise fails
        return 1

    runtime = SimpleNamespace(getDeviceCount=get_device_count, CUDARuntimeError=DriverTooOld)
    return SimpleNamespace(__version__="14.2.0", cuda=SimpleNamespace(runtime=runtime))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``machine(cuda=..., devices=..., capability=..., cupy=...)``: what torch and CuPy see."""

    def make(
        cuda: str | None = "13.0", devices: int = 1, capability: tuple[int, int] = (9, 0), cupy: Any = None
    ) -> None:
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Model X")
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy() if cupy is None else cupy)

    return make


def test_a_machine_with_everything_has_no_trouble(machine: Callable[..., None]) -> None:
    machine()
    assert device_trouble() is None


@pytest.mark.parametrize(
    ("facts", "index", "text"),
    [
        ({"cuda": None}, 0, r"torch .* is built without CUDA: install one of its CUDA builds"),
        ({"devices": 0}, 0, r"torch .* \(CUDA 13\.0\) finds no CUDA device: .* CUDA_VISIBLE_DEVICES"),
        ({"devices": 2}, 2, r"executor\.options\.device = 2, and this machine has 2 CUDA device\(s\)"),
        ({"capability": (7, 0)}, 0, r"Model X has compute capability 7\.0, and the kernels need at least 7\.5"),
        (
            {"cupy": fake_cupy(DriverTooOld("insufficient driver"))},
            0,
            r"CuPy 14\.2\.0 cannot use the driver: insufficient driver; .* torch \(13\.0\): .*mainspring\[cuda13\]",
        ),
    ],
    ids=["cpu-build", "no-device", "index", "capability", "driver"],
)
def test_what_is_missing_is_named(machine: Callable[..., None], facts: dict[str, Any], index: int, text: str) -> None:
    machine(**facts)
    with pytest.raises(ConfigError, match=r"executor\.use = 'cupy': " + text):
        find_device(index)


class Finder:
    """An import that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "cupy":
            raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModuleNotFoundError("No module", name="cupy"), r"CuPy is not installed: pip install 'mainspring\[cuda12\]'"),
        (ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock"), "CuPy cannot be imported: No module"),
        (ImportError("libcuda.so.1 is missing"), r"CuPy cannot be imported: ImportError: libcuda\.so\.1 is missing"),
    ],
    ids=["absent", "part-absent", "broken"],
)
def test_cupy_that_cannot_be_imported(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    machine(cuda="12.9")
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.setattr(sys, "meta_path", [Finder(error), *sys.meta_path])
    with pytest.raises(ConfigError, match=text):
        find_device()


class Raw:
    """CuPy's RawModule, as far as it is used."""

    made: list[dict[str, Any]] = []
    error: Exception | None = None

    def __init__(self, **arguments: Any) -> None:
        self.made.append(arguments)
        self.launches: list[Any] = []
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def compile(self) -> None:
        if self.error:
            raise self.error

    def get_function(self, name: str) -> Any:
        return self

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: Any) -> None:
        self.launches.append((grid, block, args, shared_mem, stream, self.max_dynamic_shared_size_bytes))


def module(raw: type[Raw] = Raw) -> Any:
    cupy: Any = ModuleType("cupy")
    cupy.RawModule = raw
    return CudaModule(cupy, lambda: "the stream", code="text", options=("-DX",), name_expressions=["k<float>"])


def test_kernels_are_launched_on_torchs_stream_and_large_shared_memory_is_asked_for_once() -> None:
    made = module()
    launch, raw = made.get_function("k<float>"), made._module
    for shared in (100, 60_000, 50_000, 70_000):
        launch((1,), (32,), (), shared_mem=shared)
    assert [call[3:] for call in raw.launches] == [
        (100, "the stream", 48 * 1024),
        (60_000, "the stream", 60_000),
        (50_000, "the stream", 60_000),
        (70_000, "the stream", 70_000),
    ]
    asked = {"code": "text", "options": ("-std=c++17", "-DX"), "name_expressions": ("k<float>",)}
    assert Raw.made[-1] == asked


def test_a_compile_error_is_shown_in_full() -> None:
    text = "\n".join(f"decode.cu({line}): error: no such thing" for line in range(200))
    broken = type("Broken", (Raw,), {"error": Compiler(text)})
    with pytest.raises(EngineFault) as caught:
        module(broken)
    assert text in str(caught.value)
    assert "k<float>" in str(caught.value)


class Stream:
    """A stream of torch: waits are written down."""

    def __init__(self, log: list[str], number: int) -> None:
        self.log, self.cuda_stream = log, number

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.cuda_stream} waits for {other.cuda_stream}")

    def synchronize(self) -> None:
        self.log.append(f"synchronize {self.cuda_stream}")

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.cuda_stream)


class Torch:
    """``torch.cuda`` as far as a device uses it, with the current stream and a log of what happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.current = Stream(self.log, 0)
        facts = SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="Model X")
        for name, value in {
            "set_device": lambda index: self.log.append(f"torch uses {index}"),
            "get_device_properties": lambda index: facts,
            "Stream": lambda device: Stream(self.log, 7),
            "current_stream": lambda device=None: self.current,
            "stream": self.on,
            "synchronize": lambda device: self.log.append("synchronize all"),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.log.append("replay"), pool=lambda: "the pool"),
            "graph": self.capturing,
            "mem_get_info": lambda device: (100, 1000),
            "Event": self.event,
            "device": self.using,
            "memory_reserved": lambda device: 50,
            "memory_allocated": lambda device: 20,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def event(self) -> Any:
        return SimpleNamespace(
            record=lambda stream: self.log.append(f"event on {stream.cuda_stream}"),
            synchronize=lambda: self.log.append("event waited for"),
        )

    @contextmanager
    def using(self, device: torch.device) -> Iterator[None]:
        self.log.append(f"using {device}")
        yield

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def capturing(self, graph: Any, *, pool: Any, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        self.log.append(f"capture on {stream.cuda_stream}, pool {pool}, {capture_error_mode}")
        with self.on(stream):
            yield


def cupy_of(log: list[str], with_protocol: bool) -> Any:
    def used(index: int) -> Any:
        return SimpleNamespace(use=lambda: log.append(f"CuPy uses {index}"))

    def external(number: int, device: int) -> str:
        log.append("new name for a stream")
        return f"stream {number} of device {device}"

    def from_external(stream: Stream) -> str:
        log.append("new name for a stream")
        return f"stream {stream.__cuda_stream__()[1]}"

    streams = SimpleNamespace(from_external=from_external) if with_protocol else SimpleNamespace()
    cuda = SimpleNamespace(Device=used, Stream=streams, ExternalStream=external)
    return SimpleNamespace(__version__="14.2.0", cuda=cuda, RawModule=Raw)


def test_a_device_tells_about_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Torch(monkeypatch)
    device = CudaDevice(1, cupy_of(fake.log, True))
    assert fake.log == ["torch uses 1", "CuPy uses 1"]
    assert (device.num_multiprocessors, device.tensor_cores, device.device) == (132, True, torch.device("cuda", 1))
    assert device.description == "Model X, compute capability 9.0, CuPy 14.2.0"
    assert device.free_bytes() == 130  # what torch keeps for itself and does not use counts
    device.synchronize()
    assert fake.log[-1] == "synchronize 0"
    wait = device.mark()
    assert fake.log[-1] == "event on 0"
    wait()
    assert fake.log[-2:] == ["using cuda:1", "event waited for"]


@pytest.mark.parametrize(("with_protocol", "name"), [(True, "stream {}"), (False, "stream {} of device 1")])
def test_captures_run_once_before_on_a_stream_of_their_own(
    monkeypatch: pytest.MonkeyPatch, with_protocol: bool, name: str
) -> None:
    fake = Torch(monkeypatch)
    device = CudaDevice(1, cupy_of(fake.log, with_protocol))
    made = device.raw_module(code="text", name_expressions=("k",))
    launch, raw = made.get_function("k"), made._module
    fake.log.clear()
    replays = [device.capture(lambda: launch((1,), (32,), (), shared_mem=0)) for _ in range(2)]
    launch((1,), (32,), ())
    replays[1]()
    assert [call[4] for call in raw.launches] == [name.format(7)] * 4 + [name.format(0)]
    around = ["7 waits for 0", "0 waits for 7", "synchronize all"]
    assert [line for line in fake.log if line != "new name for a stream"] == [
        *around,
        "capture on 7, pool None, thread_local",
        *around,
        "capture on 7, pool the pool, thread_local",
        "replay",
    ]
    assert fake.log.count("new name for a stream") == 2
