"""Compile every kernel for every GPU, with no GPU, and compare with the checked-in table: ``make nvrtc``.

``--write`` replaces the table's lines with what was measured, after showing what got worse.  ``--changed``: only units
whose text is another than the table was made of.  ``--every``: also what the table leaves out, for spills and stack
only.
``--cuda`` and ``--arch`` narrow it.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from .shapes import Unit, every_unit, table_units
from .table import Line, compare, faults, is_current, measure, read, write

#: Version of CUDA -> architectures whose counts the table holds; --arch compiles for others, for spills and stack only.
ARCHITECTURES = {12: (80, 90), 13: (80, 90)}


def _measure(job: tuple[int, int, Unit]) -> list[Line]:
    cuda, arch, unit = job
    return measure(cuda, arch, unit)


def main() -> int:
    """0 when nothing is worse than the table says."""
    parser = argparse.ArgumentParser(prog="python -m tests.nvrtc", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--cuda", type=int, nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--arch", type=int, nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    table = read()
    jobs = [
        (cuda, arch, unit)
        for cuda in chosen.cuda
        for arch in chosen.arch or ARCHITECTURES[cuda]
        for unit in (every_unit(arch) if chosen.every else table_units(arch))
        if not (chosen.changed and is_current(table, cuda, arch, unit))
    ]
    lines: dict[tuple[str, int, str], Line] = {}
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for job, made in zip(jobs, pool.map(_measure, jobs), strict=True):
            lines |= {line.key: line for line in made}
            print(f"CUDA {job[0]} sm_{job[1]} {job[2].label}: {len(made)} kernels", flush=True)
    table = read()  # anew: another run may have written meanwhile
    wide = chosen.every or chosen.arch
    known = [line for line in lines.values() if not wide or line.key in table]
    worse = compare(known, table) + [fault for key, line in lines.items() if key not in table for fault in faults(line)]
    print("\n".join(worse) or f"{len(lines)} kernels are as the table says")
    if chosen.write:
        write((table | lines).values())
        return 0
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
