"""The kernels of ``plugins/kernels/cpu`` as a shared library: built when first needed, kept in the user's cache.

The name of the file holds a digest of the sources, the compiler's version, the flags and the instruction set, so a
change of any of them builds anew.  It is written under a temporary name and renamed: two processes may build at once,
and either result is whole.

``begin`` starts what ``build`` will wait for.  An engine does so before it imports torch, which takes a second or two.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..folders import cache_folder
from ..settings import Config

SOURCES = Path(__file__).parents[1] / "kernels" / "cpu"
#: Units, and what each has instead of the flags of all: the last takes a few hundredths of a step.
UNITS: dict[str, tuple[str, ...]] = {"linear.cpp": (), "engine.cpp": (), "shortlist.cpp": ("-O2",)}
#: Without -ffp-contract=off the compiler would choose, tile by tile, where a product and a sum are rounded once.  Loops
#: that matter are written in vectors: it takes a sixth to a third longer looking for others.
FLAGS = (
    "-std=c++20", "-O3", "-g1", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-tree-vectorize",
    "-Wall", "-Wextra", "-Wno-psabi",
)  # fmt: skip
#: There where a driver of NVIDIA runs, which is known sooner than whether torch finds a device.
NVIDIA = Path("/dev/nvidiactl")
PATIENCE_S = 1.0  # with a compiler that is to end with this process


class CannotBuild(Exception):
    """Why this machine has no native kernels, in a few words."""


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """``needs``: flags in /proc/cpuinfo; ``arch``: what the compiler is told."""

    name: str
    needs: frozenset[str]
    arch: tuple[str, ...]


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi2"})
#: Best first.
INSTRUCTION_SETS = (
    InstructionSet(
        "avx512",
        _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni"},
        ("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512"),
    ),
    InstructionSet("avxvnni", _AVX2 | {"avx_vnni"}, ("-march=x86-64-v3", "-mavxvnni")),
    InstructionSet("avx2", _AVX2, ("-march=x86-64-v3",)),
)
#: AVX512's layout in plain C++, for tests on machines without it.
EMULATED = InstructionSet("emulated", _AVX2, ("-march=x86-64-v3",))


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the first core says it can do; empty where nobody says."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    return next((frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), frozenset())


def best_instruction_set(flags: frozenset[str] | None = None) -> InstructionSet:
    """Of this machine.  Raises CannotBuild."""
    if flags is None and platform.machine() not in ("x86_64", "AMD64"):
        raise CannotBuild(f"there are no kernels for {platform.machine()}")
    flags = cpu_flags() if flags is None else flags
    for kind in INSTRUCTION_SETS:
        if kind.needs <= flags:
            return kind
    raise CannotBuild(f"the CPU lacks {', '.join(sorted(_AVX2 - flags))}")


def compiler() -> list[str]:
    """The command of the C++ compiler, ``CXX`` or g++.  Raises CannotBuild."""
    try:
        command = shlex.split(os.environ.get("CXX", "g++"))
    except ValueError as error:
        raise CannotBuild(f"CXX = {os.environ['CXX']!r} is no command: {error}") from None
    if not command or shutil.which(command[0]) is None:
        raise CannotBuild(f"there is no C++ compiler ({' '.join(command) or 'CXX is empty'})")
    return command


def library_path(kind: InstructionSet, extra: tuple[str, ...] = (), folder: Path | None = None) -> Path:
    """Where the library lies or will lie.  Raises CannotBuild without a compiler."""
    command = [*compiler(), "-dumpfullversion", "-dumpmachine"]
    version = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - the operator's choice
    digest = hashlib.sha256(repr((compiler(), version.stdout, FLAGS, UNITS, kind.arch, extra)).encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".hpp"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return (folder or cache_folder()) / "kernels" / f"cpu-{kind.name}-{digest.hexdigest()[:20]}.so"


def begin(config: Config) -> None:
    """Start to compile what the executor of ``config`` will want, as far as that is known before torch is imported.

    Not for ``auto`` beside an NVIDIA driver, nor for a model in a folder, whose family torch may have to run: there
    ``build`` starts it.  Where this guesses wrong, the library waits for another start, or is dropped at an exit.
    """
    chosen, model = config.executor.use, config.model.path
    if chosen not in ("auto", "native") or (chosen == "auto" and NVIDIA.exists()):
        return
    with contextlib.suppress(CannotBuild, OSError, RuntimeError):  # who needs the model or the compiler says why
        if not model or Path(model).expanduser().is_file():
            kind = best_instruction_set()
            _begun(library_path(kind), kind, again=True)


def build(
    kind: InstructionSet, progress: Callable[[str], None], extra: tuple[str, ...] = (), folder: Path | None = None
) -> Path:
    """The library of ``kind``, compiled unless it is there.  ``extra`` flags are for tests.  Raises CannotBuild."""
    path = library_path(kind, extra, folder)
    if making := _begun(path, kind, extra):
        progress(f"compiling the native kernels for {kind.name}, once")
        progress(f"compiled in {making.wait():.1f} s, kept in {path}")
    return path


def _begun(path: Path, kind: InstructionSet, extra: tuple[str, ...] = (), *, again: bool = False) -> _Making | None:
    """What makes the library of ``path``, started if nobody has; None if it was there.  ``again``: also where it has
    failed and nobody was told, so that an engine is not told why one before it could not have it."""
    with _lock:
        making = _makings.get(path)
        if making is None and path.exists():
            return None
        if making is None or not (making.is_alive() or path.exists() or (making.failed and not again)):
            making = _makings[path] = _Making(path, kind, extra)
            making.start()
        return making


class _Making(threading.Thread):
    """A library on its way.  Whether anybody waits or not, in the end it is kept, and nothing else is left.

    A daemon, because an exit of the process should not wait for it but end it.
    """

    def __init__(self, path: Path, kind: InstructionSet, extra: tuple[str, ...]) -> None:
        super().__init__(name="mainspring-compile", daemon=True)
        self._path, self._kind, self._extra = path, kind, extra
        self._running: list[subprocess.Popen[bytes]] = []
        self._took, self._error = 0.0, ""

    def run(self) -> None:
        begun, path = time.monotonic(), self._path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=path.stem + "-"))
            try:
                self._compile(folder).replace(path)
            finally:  # here, not at the exit of whoever was forked meanwhile
                shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            self._error = f"the kernels cannot be kept in {path.parent}: {error.strerror or error}"
        except Exception as error:  # noqa: BLE001 - raised by ``wait``
            self._error = str(error) or type(error).__name__
        self._took = time.monotonic() - begun

    @property
    def failed(self) -> bool:
        """Known when the thread has ended."""
        return bool(self._error)

    def wait(self) -> float:
        """Returns the seconds that it took in all.  Raises CannotBuild.  Whoever asks later begins anew."""
        self.join()
        with _lock:
            if _makings.get(self._path) is self:
                del _makings[self._path]
        if self._error:
            raise CannotBuild(self._error)
        return self._took

    def stop(self) -> None:
        """End the compilers, and wait until the thread has cleared up behind them."""
        patience = time.monotonic() + PATIENCE_S
        while self.is_alive():  # it may be about to start another
            end = signal.SIGTERM if time.monotonic() < patience else signal.SIGKILL
            for process in self._running:
                for pid in [*_with_children(process.pid)] if process.returncode is None else ():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, end)
            self.join(0.02)

    def _compile(self, folder: Path) -> Path:
        """All units at once, then the link; returns the library in ``folder``.  Raises CannotBuild, OSError."""
        common = [*compiler(), *FLAGS, *self._kind.arch, f'-DMS_ISA_FILE="isa_{self._kind.name}.hpp"']
        objects = [str(folder / f"{unit}.o") for unit in UNITS]
        self._run(
            [*common, *own, *self._extra, "-c", str(SOURCES / unit), "-o", made]
            for (unit, own), made in zip(UNITS.items(), objects, strict=True)
        )
        library = folder / "made.so"
        self._run([[*compiler(), "-shared", *self._extra, *objects, "-o", str(library), "-lpthread"]])
        return library

    def _run(self, commands: Iterable[list[str]]) -> None:
        """All at once.  Raises CannotBuild with the first error that one of them prints, OSError."""
        self._running = []
        for command in commands:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # noqa: S603
            self._running.append(process)
        said = [process.communicate()[1] for process in self._running]
        if any(process.returncode for process in self._running):
            errors = [line for text in said for line in text.decode(errors="replace").splitlines() if "error" in line]
            raise CannotBuild(f"the compiler failed: {errors[0] if errors else 'without saying why'}")


_lock = threading.Lock()
#: Begun, and not yet waited for.
_makings: dict[Path, _Making] = {}


def _forget() -> None:
    """A forked process has none of the threads, and may have found the lock taken."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _makings.clear()


os.register_at_fork(after_in_child=_forget)


@atexit.register
def _stop() -> None:
    for making in [*_makings.values()]:
        making.stop()


def _with_children(pid: int) -> Iterator[int]:
    """A process and all below it: what a compiler's driver has started would outlive it."""
    yield pid
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == pid:
                yield from _with_children(int(stat.parent.name))
