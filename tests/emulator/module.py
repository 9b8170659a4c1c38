"""CUDA kernel text, run on the CPU behind the interface of CuPy's ``RawModule``.  See README.md beside this."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
#: Flags of the compiler for the kernels and for the scheduler, which is never instrumented.
SANITIZERS: dict[str, tuple[list[str], list[str]]] = {
    "": ([], []),
    "address": (
        ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"],
        ["-DEMU_ASAN=1"],
    ),
    "thread": (["-fsanitize=thread"], ["-DEMU_TSAN=1"]),
}
#: Flags of the compiler for both; those of the kernels alone; those of the scheduler alone.
BASE = [
    "-std=c++17", "-g1", "-fPIC", "-fno-omit-frame-pointer", "-Wall", "-Wno-unknown-pragmas",
    "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-maybe-uninitialized",
    "-fno-strict-aliasing", "-ffp-contract=fast", "-mavx2", "-mfma",
]  # fmt: skip
KERNELS = ["-O1"]
RUNTIME = ["-O2", "-fno-tree-loop-distribute-patterns"]


class EmulatorError(RuntimeError):
    """A kernel does not compile, or did what no device allows."""


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint64),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_uint64),
        ("workers", ctypes.c_int),
    ]


@dataclass
class Schedule:
    """How threads take turns.  Order 0: ascending; 1: descending, blocks too; 2: random threads; 3: one random warp
    at a time runs ahead to the next barrier of the block."""

    order: int = 0
    seed: int = 0


_current = Schedule()
_WORKERS = 2  # blocks at once, each on its own thread; one under a sanitizer


@contextmanager
def schedule(order: int = 0, seed: int = 0) -> Iterator[None]:
    """Launches within run in this order."""
    before = (_current.order, _current.seed)
    _current.order, _current.seed = order, seed
    try:
        yield
    finally:
        _current.order, _current.seed = before


@dataclass
class Stats:
    """Counted in the last launch; bytes are of streaming loads and asynchronous copies."""

    collectives: int = 0
    mma: int = 0
    ldmatrix: int = 0
    bank_conflicts: int = 0
    loaded_bytes: int = 0
    copied_bytes: int = 0


last = Stats()


def cache_folder() -> Path:
    """Where built kernels are kept: ``CUDA_EMULATOR_CACHE``, or a folder of this user among the temporary files."""
    return Path(os.environ.get("CUDA_EMULATOR_CACHE") or Path(tempfile.gettempdir()) / f"cuda-emulator-{os.getuid()}")


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _build(arguments: list[str], target: Path) -> None:
    """Run the compiler into a file that appears whole or not at all."""
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    command = ["g++", f"-I{HERE}", *arguments, "-o", str(partial)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulatorError(f"the kernels do not compile:\n{done.stderr[-6000:]}")
    partial.replace(target)


class RawModule:
    """``RawModule(code=..., name_expressions=[...])`` as in CuPy.  Of ``options`` those that define macros are heeded.

    A kernel is built when it is first launched, alone: what nobody runs costs nothing.  ``CUDA_EMULATOR_SANITIZE`` is
    "address", "thread" or nothing.
    """

    def __init__(
        self,
        *,
        code: str,
        options: Sequence[str] = (),
        name_expressions: Sequence[str] = (),
    ) -> None:
        if shutil.which("g++") is None:
            raise EmulatorError("the emulator needs g++ on the path")
        self.code, self.names = code, tuple(name_expressions)
        self.sanitize = os.environ.get("CUDA_EMULATOR_SANITIZE", "")
        self.defines = [option for option in options if option.startswith("-D")]

    def get_function(self, name: str) -> Kernel:
        """The kernel of one of ``name_expressions``."""
        if name not in self.names:
            raise EmulatorError(f"{name} is none of the name expressions {self.names}")
        return Kernel(self, name)

    def build(self, name: str) -> ctypes.CDLL:
        """The library with the kernel ``name`` alone.  Raises EmulatorError with the compiler's messages."""
        more, runtime_more = SANITIZERS[self.sanitize]
        flags, runtime_flags = [*BASE, *KERNELS, *more, *self.defines], [*BASE, *RUNTIME, *runtime_more]
        text = f'#include "emulator.h"\n{self.code}\nEMU_EXPORT(0, {name})\n'
        own = "".join((HERE / file).read_text() for file in ("emulator.h", "intrin_emulated.h", "runtime.cpp"))
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / f"{_key(text, own, *flags, *runtime_flags)}.so"
        if not library.exists():
            runtime = folder / f"{_key(own, *runtime_flags)}.o"
            if not runtime.exists():
                _build([*runtime_flags, "-c", str(HERE / "runtime.cpp")], runtime)
            source = library.with_suffix(f".{os.getpid()}.cpp")
            source.write_text(text)
            try:
                _build([*flags, "-shared", str(source), str(runtime), "-lpthread"], library)
            finally:
                source.unlink()
        return ctypes.CDLL(str(library))


def _pack(value: Any) -> tuple[np.generic, str]:
    """An argument as CuPy would pass it, and its kind: p(ointer), i(nteger), f(loat), b(ool)."""
    if value is None:
        return np.uint64(0), "p"
    if isinstance(value, np.generic):
        return value, {"f": "f", "b": "b"}.get(value.dtype.kind, "i")
    if isinstance(value, bool):
        return np.bool_(value), "b"
    if isinstance(value, int):
        return (np.int64(value) if -(2**63) <= value < 2**63 else np.uint64(value)), "i"
    if isinstance(value, float):
        return np.float64(value), "f"
    raise TypeError(f"cannot pass {type(value)} to a kernel: pass addresses and NumPy scalars")


class Kernel:
    """One kernel; ``kernel(grid, block, args, shared_mem=bytes)`` runs it to its end.

    Raises TypeError for arguments that differ from the parameters in number, size or kind (CuPy compares nothing), and
    EmulatorError for what a device would not survive.
    """

    def __init__(self, module: RawModule, name: str) -> None:
        self.module, self.name = module, name

    @cached_property
    def function(self) -> Any:
        """The entry of the built library."""
        entry = self.module.build(self.name).emu_k0
        entry.restype = ctypes.c_int
        return entry

    @cached_property
    def signature(self) -> list[tuple[str, int]]:
        """Kind and bytes of each parameter."""
        kinds = (ctypes.c_int * 64)()
        count = self.module.build(self.name).emu_s0(kinds)
        return [(chr(kinds[at] >> 16), kinds[at] & 0xFFFF) for at in range(count)]

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        if len(args) != len(self.signature):
            raise TypeError(f"{self.name}: {len(args)} arguments, the kernel has {len(self.signature)}")
        packed = []
        for at, (value, (kind, size)) in enumerate(zip(args, self.signature, strict=True)):
            made, own = _pack(value)
            if made.dtype.itemsize != size or (kind == "f") != (own == "f"):
                raise TypeError(f"{self.name}: argument {at} is {made.dtype}, the parameter has {size} bytes, {kind!r}")
            packed.append(np.array([made]))
        pointers = (ctypes.c_void_p * len(packed))(*[one.ctypes.data for one in packed])
        sizes = [(ctypes.c_uint * 3)(*(*shape, 1, 1)[:3]) for shape in (grid, block)]
        config = _Config(*sizes, shared_mem, _current.order, _current.seed, _WORKERS)
        error, counts = ctypes.create_string_buffer(2048), (ctypes.c_uint64 * 8)()
        failed = self.function(ctypes.byref(config), pointers, error, ctypes.c_uint64(2048), counts)
        last.collectives, last.mma, last.ldmatrix, last.bank_conflicts = counts[:4]
        last.loaded_bytes, last.copied_bytes = counts[4], counts[6]
        if failed:
            raise EmulatorError(f"{self.name}: {error.value.decode()}")
