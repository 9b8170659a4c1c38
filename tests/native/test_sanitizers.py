"""Address, undefined-behaviour and thread sanitizers over ragged shapes, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.native_kernels import native_library

from mainspring.plugins.executors.native_build import EMULATED, InstructionSet, best_instruction_set, build, compiler

ROOT = Path(__file__).parents[2]
KINDS = {
    "address": (("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"), ("libasan.so", "libubsan.so")),
    "thread": (("-O1", "-fsanitize=thread"), ("libtsan.so",)),
}


def sanitized(kind: InstructionSet, name: str, folder: Path, seed: int, rounds: int) -> None:
    native_library()  # skips without a compiler
    flags, runtimes = KINDS[name]
    found = [
        subprocess.run(
            [*compiler(), f"-print-file-name={library}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for library in runtimes
    ]
    if not all(Path(path).is_absolute() for path in found):
        pytest.skip(f"the compiler comes without {', '.join(runtimes)}")
    library = build(kind, print, flags, folder)
    environment = os.environ | {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "TSAN_OPTIONS": "exitcode=99:report_signal_unsafe=0",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "tests.native.sanitized", str(library), str(seed), str(rounds)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "clean"), done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KINDS))
def test_ragged_shapes(name: str, tmp_path: Path) -> None:
    sanitized(best_instruction_set(), name, tmp_path, seed=0, rounds=8)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("kind", [None, EMULATED], ids=["native", "emulated"])
def test_many_ragged_shapes(
    kind: InstructionSet | None, name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sanitized(kind or best_instruction_set(), name, tmp_path_factory.getbasetemp() / "sanitized", seed, rounds=60)
