"""The ledger of an executor's memory: what weights, workspace and the KV pool take, and how many blocks that leaves.

Sizes that do not fit are an error with the needed and the available size and the option to change (E-14).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from ..settings import Config
from .cores import cgroup_folders

GIB = 2**30
_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": GIB, "tib": 2**40}
_MOST_BYTES = 2**60  # no machine has as much
DEFAULT_BUDGET = 4 * GIB
#: Interpreter, torch and allocator slack of an idle process, as measured with torch 2.13 on Linux.
OVERHEAD = 256 * 2**20


def kv_bytes(num_layers: int, num_kv_heads: int, head_dim: int, num_tokens: int, element_bytes: int) -> int:
    """Bytes of the keys and values of ``num_tokens``."""
    return num_layers * 2 * num_kv_heads * head_dim * num_tokens * element_bytes


def show(num_bytes: int) -> str:
    """``8589934592`` -> ``8.00 GiB``; below one GiB in MiB."""
    return f"{num_bytes / GIB:.2f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.2f} MiB"


def asked_bytes(memory: str | int) -> int | None:
    """The budget that ``executor.memory`` asks for; None: automatic.  Raises ConfigError."""
    if isinstance(memory, int):
        return memory
    return None if memory == "auto" else parse(memory)


def parse(text: str, key: str = "executor.memory") -> int:
    """``4GiB``, ``512 MiB`` or a number of bytes -> bytes.  Raises ConfigError naming ``key``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0.0
    if not 1 <= size < _MOST_BYTES:
        raise ConfigError(f"{key} = {text!r}: expected a size such as '4GiB', '512MiB' or a number of bytes")
    return int(size)


def available_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory this process may still take: the least of what the machine and the process's cgroups have free."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # not Linux: the size of the machine is the best bound there is
    for limit, used in _cgroup_files(proc, cgroup):
        try:
            free = min(free, max(0, int(limit.read_text()) - int(used.read_text())))
        except (OSError, ValueError):
            continue  # absent, or "max": no limit at this level
    return free


def _cgroup_files(proc: Path, cgroup: Path) -> list[tuple[Path, Path]]:
    """(limit, use) of every cgroup above this process, version 2 and 1."""
    pairs = [(folder / "memory.max", folder / "memory.current") for folder in cgroup_folders(proc, cgroup)]
    return [*pairs, (cgroup / "memory/memory.limit_in_bytes", cgroup / "memory/memory.usage_in_bytes")]


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes by column, and the pool they pay for."""

    weights: int
    workspace: int
    kv: int
    overhead: int
    num_blocks: int
    host_kv: int = 0

    def columns(self) -> dict[str, int]:
        """The columns by name; ``host_kv`` only if preempted requests have blocks of their own."""
        own = {"weights": self.weights, "workspace": self.workspace, "kv": self.kv, "overhead": self.overhead}
        return {**own, "host_kv": self.host_kv} if self.host_kv else own

    def describe(self) -> str:
        """One line for people."""
        parts = ", ".join(f"{name} {show(size)}" for name, size in self.columns().items())
        return f"{parts}; {self.num_blocks} KV blocks"


def num_host_blocks(config: Config) -> int:
    """Blocks behind the pool for preempted requests, as the allocator's options say."""
    return int(config.allocator.options.get("host_blocks", 0))


def plan(
    config: Config,
    weights: int,
    workspace: int,
    block_bytes: int,
    max_context: int,
    available: int,
    host_available: int | None = None,
) -> Ledger:
    """Decide the number of KV blocks.

    ``executor.memory`` bounds weights + workspace + KV, host blocks included; "auto" is the smaller of 4 GiB and a
    quarter of ``available``.  With ``host_available``, ``available`` is memory of a device, of which "auto" takes nine
    tenths, and host blocks are taken from the host's.
    ``allocator.num_blocks`` overrides the number, but not the memory there is.  No more blocks are made than
    ``scheduler.max_running`` requests of ``max_context`` tokens can fill.  Raises ConfigError with sizes.
    """
    asked, block_size = config.executor.memory, config.allocator.block_size
    if (stated := asked_bytes(asked)) is not None:
        budget, origin = stated, "executor.memory"
    elif host_available is None:
        budget, origin = min(DEFAULT_BUDGET, available // 4), "a quarter of the free memory, at most 4 GiB"
    else:
        budget, origin = available * 9 // 10, "nine tenths of the device's free memory"
    host_kv = num_host_blocks(config) * block_bytes
    fixed = weights + workspace + (host_kv if host_available is None else 0)
    if host_available is not None and host_kv > host_available:
        raise ConfigError(
            f"allocator.options.host_blocks = {num_host_blocks(config)}: blocks of {show(block_bytes)} need "
            f"{show(host_kv)} of the host's memory, and {show(host_available)} are free"
        )
    if num_blocks := config.allocator.num_blocks:
        need, option, budget, origin = fixed + num_blocks * block_bytes, "allocator.num_blocks", available, "free"
    else:
        useful = config.scheduler.max_running * -(-max_context // block_size)
        num_blocks = min(max(0, budget - fixed) // block_bytes, useful)
        need, option = fixed + max(1, num_blocks) * block_bytes, "executor.memory"
    ledger = Ledger(weights, workspace, num_blocks * block_bytes, OVERHEAD, num_blocks, host_kv)
    if need > budget:
        host = f", {num_host_blocks(config)} host blocks of {show(block_bytes)}" if host_kv else ""
        raise ConfigError(
            f"{option} = {asked if option == 'executor.memory' else num_blocks!r}: "
            f"weights {show(weights)}, workspace {show(workspace)}{host} and {max(1, num_blocks)} KV block(s) of "
            f"{show(block_bytes)} need {show(need)}; available are {show(budget)} ({origin}); change {option}"
        )
    if need > available:
        raise ConfigError(
            f"{option}: {show(need)} are needed and {show(available)} are free on this machine; lower {option}"
        )
    return ledger
