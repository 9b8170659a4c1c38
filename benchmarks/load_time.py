"""Seconds until the default model can take a step, first and second start, and the memory of the process.

    python benchmarks/load_time.py [--model PATH] [--dtype auto]

Each start is a process of its own.  The first one converts into an empty cache folder, the second finds it filled
(files still in the page cache of the machine).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

CHILD = """
import resource, sys, time
begun = time.perf_counter()
from mainspring.core.config import ExecutorConfig
from mainspring.plugins.executors.auto import AutoExecutor
imported = time.perf_counter()
config = Config(model=ModelConfig(path=sys.argv[1]), executor=ExecutorConfig(dtype=sys.argv[2]))
info = AutoExecutor(None, config).load(lambda text: print("   ", text))
loaded = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"    import {imported - begun:.2f} s, load {loaded - imported:.2f} s, peak {peak:.0f} MiB resident")
"""


def main() -> None:
    """Start twice and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a GGUF file or a Hugging Face folder; default: the embedded model")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for label in ("first start (empty cache)", "second start"):
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
