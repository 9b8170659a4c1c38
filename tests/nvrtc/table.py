"""The checked-in table of what the compilers make of every kernel, and what counts as a regression.

``table.tsv`` has one line for each kernel, architecture and version of CUDA that was measured.  Spilled registers and
stack have to be 0.  More registers where that costs a block on a multiprocessor, other counts of products or matrix
loads, a main loop that grew by more than a twentieth: a regression.  More shared memory than a block can have there: a
fault.  A change of the kernels' text needs the table measured anew.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from .compiler import compiler
from .sass import listings
from .shapes import Unit, every_unit

FILE = Path(__file__).with_name("table.tsv")
REGISTERS = 65536  # of a multiprocessor
#: Architecture -> shared memory that a block can have, in KiB.
ARCHITECTURES = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
#: Major versions of CUDA that kernels are compiled with.
CUDA = (12, 13)


@dataclass(frozen=True, slots=True)
class Line:
    """One kernel.  ``shared_bytes``: dynamic, of a block; ``loop``: instructions of the longest loop."""

    cuda: str
    arch: int
    kernel: str
    registers: int
    spilled: int
    stack: int
    shared_bytes: int
    products: int
    matrix_loads: int
    loop: int
    text: str

    @property
    def key(self) -> tuple[str, int, str]:
        return self.cuda, self.arch, self.kernel


def measure(cuda: int, arch: int, unit: Unit) -> list[Line]:
    """Compile a unit.  Raises CompileError."""
    nvrtc = compiler(cuda)
    made = nvrtc.compile(unit.text, list(unit.kernels), arch)
    listing = listings(made.cubin)
    version = ".".join(map(str, nvrtc.version))
    return [
        Line(
            version, arch, name, made.resources[name].registers, made.resources[name].spilled_bytes,
            made.resources[name].stack_bytes, shared, listing[made.mangled[name]].products,
            listing[made.mangled[name]].matrix_loads, listing[made.mangled[name]].loop.total(), unit.digest,
        )
        for name, shared in unit.kernels.items()
    ]  # fmt: skip


def read() -> dict[tuple[str, int, str], Line]:
    """The table as it is checked in."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    numbers = {field.name for field in fields(Line) if field.type == "int"}
    made = []
    for row in rows:
        values: dict[str, Any] = {key: int(text) if key in numbers else text for key, text in row.items()}
        made.append(Line(**values))
    return {line.key: line for line in made}


def write(lines: Iterable[Line]) -> None:
    """Replace the table."""
    names = [field.name for field in fields(Line)]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, delimiter="\t", lineterminator="\n")
        out.writerow(names)
        out.writerows([getattr(line, name) for name in names] for line in sorted(lines, key=lambda line: line.key))


def wanted(line: Line) -> bool:
    """Whether the line is of a kernel that there still is, and of its text as it is."""
    return (line.kernel, line.text) in _texts(line.arch)


@cache
def _texts(arch: int) -> frozenset[tuple[str, str]]:
    return frozenset((kernel, unit.digest) for unit in every_unit(arch) for kernel in unit.kernels)


def is_current(table: dict[tuple[str, int, str], Line], cuda: int, arch: int, unit: Unit) -> bool:
    """Whether every kernel of the unit was measured, from the text as it is."""
    found = {
        line.kernel: line.text for line in table.values() if line.arch == arch and line.cuda.startswith(f"{cuda}.")
    }
    return all(found.get(kernel) == unit.digest for kernel in unit.kernels)


def blocks_by_registers(registers: int, threads: int = 128) -> int:
    """Blocks of ``threads`` that the registers of a multiprocessor allow; they are given in units of 8 a thread."""
    return REGISTERS // (-(-registers // 8) * 8 * threads)


def faults(line: Line) -> list[str]:
    """What no kernel may do."""
    where = f"{line.kernel} for sm_{line.arch}, CUDA {line.cuda}"
    out = [f"{where}: {name} {getattr(line, name)} bytes" for name in ("spilled", "stack") if getattr(line, name)]
    if line.shared_bytes > (most := ARCHITECTURES[line.arch] * 1024):
        out.append(f"{where}: {line.shared_bytes} bytes of shared memory, a block can have {most}")
    return out


def regressions(new: Line, old: Line) -> list[str]:
    """How ``new`` is worse than ``old``."""
    where = f"{new.kernel} for sm_{new.arch}, CUDA {new.cuda}"
    out = faults(new)
    if blocks_by_registers(new.registers) < blocks_by_registers(old.registers):
        out.append(f"{where}: {new.registers} registers, were {old.registers}")
    for name in ("products", "matrix_loads"):
        if getattr(new, name) != getattr(old, name):
            out.append(f"{where}: {getattr(new, name)} {name}, were {getattr(old, name)}")
    if new.shared_bytes > old.shared_bytes:
        out.append(f"{where}: {new.shared_bytes} bytes of shared memory, were {old.shared_bytes}")
    if new.loop > old.loop * 1.05:
        out.append(f"{where}: a loop of {new.loop} instructions, was {old.loop}")
    return out


def compare(lines: Sequence[Line], table: dict[tuple[str, int, str], Line]) -> list[str]:
    """Regressions of ``lines``; of those that the table does not hold only what no kernel may do."""
    out = []
    for line in lines:
        old = table.get(line.key)
        out += regressions(line, old) if old else faults(line)
    return out
