"""What this process runs on, in words for a report."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """Processor and cores, as the operating system names them."""
    name = platform.processor() or platform.machine()
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # not Linux
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def machine() -> dict[str, str]:
    """``run on`` and ``python``."""
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return {"run on": f"{processor()}, {system}", "python": platform.python_version()}
