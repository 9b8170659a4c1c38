"""How many cores this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """By affinity, and by the CPU quota of the process's control groups: a container with ``--cpus 1`` on a large
    machine gets 1.  At least 1."""
    cores = len(os.sched_getaffinity(0))
    for folder in cgroup_folders(proc, cgroup):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            cores = min(cores, max(1, math.ceil(int(quota) / int(period))))
        except (OSError, ValueError):
            continue  # absent, or "max": no limit at this level
    return cores


def cgroup_folders(proc: Path, cgroup: Path) -> set[Path]:
    """Of every control group above this process, the root included."""
    try:
        own = [line.split(":", 2)[2].lstrip("/") for line in (proc / "self/cgroup").read_text().splitlines()]
    except (OSError, IndexError):
        own = []
    folders = {cgroup}
    for part in own:
        folder = cgroup / part
        folders |= {folder, *(parent for parent in folder.parents if cgroup in parent.parents)}
    return folders


def threads_in_words(threads: int) -> str:
    """For people."""
    return f"{threads} thread" if threads == 1 else f"{threads} threads"
