"""How to start a Python process whose emulated kernels a sanitizer watches."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

#: Runtimes to preload and options of the runtimes, by kind.
PRELOAD = {"address": ("libasan.so", "libubsan.so", "libstdc++.so"), "thread": ("libtsan.so", "libstdc++.so")}
OPTIONS = {
    "address": {
        # Python and NumPy keep memory to the end, and fibres switch stacks.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:exitcode=66",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    },
    "thread": {
        "TSAN_OPTIONS": "exitcode=66 history_size=4 report_thread_leaks=0 report_signal_unsafe=0",
    },
}


@cache
def _library(name: str) -> str:
    done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def command(kind: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """``arguments`` as a command line and an environment in which ``RawModule`` builds for the sanitizer ``kind``.

    ThreadSanitizer needs an address space that is not shuffled: ``setarch`` starts it.
    """
    environment = {**os.environ, "CUDA_EMULATOR_SANITIZE": kind, "OPENBLAS_NUM_THREADS": "1", **OPTIONS[kind]}
    environment["LD_PRELOAD"] = " ".join(_library(name) for name in PRELOAD[kind])
    prefix = []
    if kind == "thread":
        setarch = shutil.which("setarch")
        assert setarch, "ThreadSanitizer needs setarch (util-linux)"
        prefix = [setarch, "-R"]
    return [*prefix, *arguments], environment
