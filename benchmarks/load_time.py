"""Seconds until the default model can take a step, first and second start, and the memory of the process.

    python benchmarks/load_time.py [--model PATH] [--dtype auto] [--cold]

Each start is a process of its own.  The first one converts into an empty cache folder, the second finds it filled
(files still in the page cache of the machine).  ``--cold`` adds a start whose files have left the page cache, as far
as this system lets them.  The peak is the largest resident size while loading, less what importing the libraries
took; it is compared with the weights in their final form.  The KV pool takes memory only as it is used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = """
import re, sys, time
from pathlib import Path

begun = time.perf_counter()
from mainspring.core.config import ExecutorConfig
from mainspring.plugins.executors.auto import AutoExecutor
from mainspring.plugins.settings import Config, ModelConfig


def resident(key):
    return int(re.search(rf"{key}:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


imported, before = time.perf_counter(), resident("VmRSS")
config = Config(model=ModelConfig(path=sys.argv[1]), executor=ExecutorConfig(dtype=sys.argv[2]))
info = AutoExecutor(None, config).load(lambda text: print("   ", text))
loaded, peak, weights = time.perf_counter(), resident("VmHWM"), info.memory["weights"] / 2**20
print(
    f"    import {imported - begun:.2f} s, load {loaded - imported:.2f} s, together {loaded - begun:.2f} s\\n"
    f"    resident: {before:.0f} MiB imported, {resident('VmRSS'):.0f} MiB loaded, {peak:.0f} MiB at the peak; "
    f"weights {weights:.0f} MiB, peak less imports {(peak - before) / weights:.2f} times that"
)
"""


def evict(folder: Path) -> None:
    """Ask the system to drop the files below ``folder`` from its page cache."""
    for file in folder.rglob("*.safetensors"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Start twice or three times and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a GGUF file or a Hugging Face folder; default: the embedded model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--cold", action="store_true", help="one more start with the files out of the page cache")
    args = parser.parse_args()
    labels = ["first start (empty cache)", "second start"] + ["start with cold files"] * args.cold
    with tempfile.TemporaryDirectory() as folder:
        for label in labels:
            if label == "start with cold files":
                evict(Path(folder))
            begun = time.perf_counter()
            print(label, flush=True)
            subprocess.run(  # noqa: S603 -- this interpreter, this file's own text
                [sys.executable, "-c", CHILD, args.model, args.dtype],
                check=True,
                env=os.environ | {"XDG_CACHE_HOME": folder},
            )
            print(f"    process {time.perf_counter() - begun:.2f} s")


if __name__ == "__main__":
    main()
