"""Compile every kernel for every GPU, with no GPU, and compare with the checked-in table: ``make nvrtc``.

``--write`` replaces the table's lines with what was measured, unit by unit, and still says what got worse.
``--changed``: only units whose text is another than the table was made of.  ``--cuda`` and ``--arch`` narrow it.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

from .shapes import Unit, every_unit
from .table import ARCHITECTURES, CUDA, Line, compare, is_current, measure, read, wanted, write


def _measure(job: tuple[int, int, Unit]) -> list[Line]:
    cuda, arch, unit = job
    return measure(cuda, arch, unit)


def main() -> int:
    """0 when nothing is worse than the table says."""
    parser = argparse.ArgumentParser(prog="python -m tests.nvrtc", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--cuda", type=int, nargs="*", default=CUDA)
    parser.add_argument("--arch", type=int, nargs="*", default=ARCHITECTURES)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    before = read()
    jobs = [
        (cuda, arch, unit)
        for cuda in chosen.cuda
        for arch in chosen.arch
        for unit in every_unit(arch)
        if not (chosen.changed and is_current(before, cuda, arch, unit))
    ]
    count, worse = 0, list[str]()
    with ProcessPoolExecutor(chosen.jobs) as pool:
        for job, made in zip(jobs, pool.map(_measure, jobs), strict=True):
            count += len(made)
            worse += compare(made, before)
            print(f"CUDA {job[0]} sm_{job[1]} {job[2].label}: {len(made)} kernels", flush=True)
            if chosen.write:  # read anew: another run may have written meanwhile
                lines = (read() | {line.key: line for line in made}).values()
                write(line for line in lines if wanted(line))
    print("\n".join(worse) or f"{count} kernels are right, and no worse than the table says")
    return 1 if worse and not chosen.write else 0


if __name__ == "__main__":
    sys.exit(main())
