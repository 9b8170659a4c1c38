"""Seconds from nothing to the first token, first and second start, and the memory of the process.

    python benchmarks/load_time.py [--model PATH] [--executor native torch] [--dtype auto] [--cold]

Each start is a process of its own that imports, loads, and asks for one token of a short prompt, as a user's program
does; times count from its launch.  Imports end with the engine made, whose plugins bring torch along; kernels are being
compiled meanwhile.  The first start builds them and converts weights into an empty cache folder, the second finds it
filled (files still in the page cache of the machine).  ``--cold`` adds a start whose model, kernels and converted
weights have left the page cache, as far as this system lets them; libraries stay.  The peak is the largest resident
size until the token, less what importing the libraries took; it is compared with the weights in their final form.
``printed`` is what the engine says that it takes: weights, workspace and overhead; the KV pool takes memory only as it
is used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mainspring.plugins.models.embedded import default_model_path

CHILD = """
import asyncio, re, sys, time
from pathlib import Path

from mainspring import Engine
from mainspring.plugins.config_file import load


def resident(key):
    return int(re.search(rf"{key}:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


async def main():
    begun = float(sys.argv[1])  # the same clock in every process
    engine = Engine(load(None, sys.argv[2:]).config, progress=lambda text: print("   ", text))
    imported, before = time.perf_counter(), resident("VmRSS")
    async with engine:
        loaded, now = time.perf_counter(), resident("VmRSS")
        await engine.generate({"prompt": "Once upon a time", "max_tokens": 1})
        first, peak, memory = time.perf_counter(), resident("VmHWM"), engine.kernel.info.memory
        weights = memory["weights"] / 2**20
        printed = weights + (memory["workspace"] + memory["overhead"]) / 2**20
        print(
            f"    import {imported - begun:.2f} s, load {loaded - imported:.2f} s, first token after "
            f"{first - begun:.2f} s\\n"
            f"    resident: {before:.0f} MiB imported, {now:.0f} MiB loaded, {resident('VmRSS'):.0f} MiB with a token, "
            f"{peak:.0f} MiB at the peak; printed {printed:.0f} MiB, of them weights {weights:.0f}; "
            f"peak less imports {(peak - before) / weights:.2f} times the weights"
        )


asyncio.run(main())
"""


def evict(file: Path) -> None:
    """Ask the system to drop ``file`` from its page cache."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    """Start each executor twice or three times and print; 1 if a start failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a GGUF file or a Hugging Face folder; default: the embedded model")
    parser.add_argument("--executor", nargs="+", default=["native", "torch"], metavar="NAME")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cold", action="store_true", help="one more start with the files out of the page cache")
    args = parser.parse_args()
    model, failed = Path(args.model or default_model_path()), False
    for executor in args.executor:
        overrides = [f"model.path={args.model}", f"executor.use={executor}", f"executor.dtype={args.dtype}"]
        with tempfile.TemporaryDirectory() as folder:
            for label in ["first start (empty cache)", "second start", "start with cold files"][: 2 + args.cold]:
                if label == "start with cold files":
                    below = [*Path(folder).rglob("*"), *([model] if model.is_file() else model.rglob("*"))]
                    for file in filter(Path.is_file, below):
                        evict(file)
                begun = time.perf_counter()
                print(f"{executor}: {label}", flush=True)
                ended = subprocess.run(  # noqa: S603 -- this interpreter, this file's own text
                    [sys.executable, "-c", CHILD, str(begun), *overrides, "journal.path="],
                    check=False,
                    env=os.environ | {"XDG_CACHE_HOME": folder},
                )
                failed |= ended.returncode != 0
                print(f"    process {time.perf_counter() - begun:.2f} s, exit code {ended.returncode}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
