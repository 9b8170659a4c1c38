"""The kernels of ``plugins/kernels/cpu`` as a shared library: built when first needed, kept in the user's cache.

The name of the file holds a digest of the sources, the compiler's version, the flags and the instruction set, so a
change of any of them builds anew.  It is written under a temporary name and renamed: two processes may build at once,
and either result is whole.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..folders import cache_folder

SOURCES = Path(__file__).parents[1] / "kernels" / "cpu"
#: Units, and what each is spared: the compiler has nothing to find in loops that are written in vectors, and takes a
#: third longer looking.
UNITS: dict[str, tuple[str, ...]] = {"linear.cpp": ("-fno-tree-vectorize",), "engine.cpp": ()}
#: Without -ffp-contract=off the compiler would choose, tile by tile, where a product and a sum are rounded once.
FLAGS = ("-std=c++20", "-O3", "-g1", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Wno-psabi")


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
    command = shlex.split(os.environ.get("CXX", "g++"))
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


def build(
    kind: InstructionSet, progress: Callable[[str], None], extra: tuple[str, ...] = (), folder: Path | None = None
) -> Path:
    """The library of ``kind``, compiled unless it is there.  ``extra`` flags are for tests.  Raises CannotBuild."""
    path = library_path(kind, extra, folder)
    if path.exists():
        return path
    begun = time.monotonic()
    progress(f"compiling the native kernels for {kind.name}, once")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=path.stem + "-") as name:
            made = _compile(kind, extra, Path(name))
            made.replace(path)
    except OSError as error:
        raise CannotBuild(f"the kernels cannot be kept in {path.parent}: {error.strerror or error}") from error
    progress(f"compiled in {time.monotonic() - begun:.1f} s, kept in {path}")
    return path


def _compile(kind: InstructionSet, extra: tuple[str, ...], folder: Path) -> Path:
    """All units at once, then the link; returns the library in ``folder``.  Raises CannotBuild, OSError."""
    common = [*compiler(), *FLAGS, *kind.arch, *extra, f'-DMS_ISA_FILE="isa_{kind.name}.hpp"']
    objects = [folder / f"{unit}.o" for unit in UNITS]
    running = [
        subprocess.Popen(  # noqa: S603
            [*common, *own, "-c", str(SOURCES / unit), "-o", str(made)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for (unit, own), made in zip(UNITS.items(), objects, strict=True)
    ]
    said = [process.communicate()[1] for process in running]
    library = folder / "made.so"
    if not any(process.returncode for process in running):
        link = [*compiler(), "-shared", *extra, *map(str, objects), "-o", str(library), "-lpthread"]
        linked = subprocess.run(link, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)  # noqa: S603
        if linked.returncode == 0:
            return library
        said = [linked.stderr]
    errors = [line for text in said for line in text.decode(errors="replace").splitlines() if "error" in line]
    raise CannotBuild(f"the compiler failed: {errors[0] if errors else 'without saying why'}")
