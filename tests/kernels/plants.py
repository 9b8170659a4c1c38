"""Bugs to put into the kernels' text, each of a kind that a GPU may hide: the checks have to find every one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plant:
    """``scenario`` runs the kernel; ``sanitizer`` reports it with ``says``; ``shows``: order 3 makes the result
    wrong."""

    scenario: str
    old: str
    new: str
    sanitizer: str
    says: str
    shows: bool = False

    def into(self, text: str) -> str:
        """The text with the bug in it."""
        assert text.count(self.old) == 1, f"{self.old!r} stands {text.count(self.old)} times in the kernels' text"
        return text.replace(self.old, self.new)


def _without_barrier(scenario: str, why: str, barrier: str = "__syncthreads()", shows: bool = True) -> Plant:
    return Plant(scenario, f"{barrier};  // {why}", ";", "thread", "data race", shows)


STAGE = "this stage has landed for every thread, and every thread is done with the other"
LANDED = f"    copy_async_wait<0>();\n    __syncthreads();  // {STAGE}\n"
LOAD = "    if (first + BN < end) load(stage ^ 1, first + BN);\n"
PLANTS = {
    "write past an array": Plant(
        "copies", "i < block_units; i +=", "i <= block_units; i +=", "address", "heap-buffer-overflow"
    ),
    "read past a sub-array of shared memory": Plant(
        "decode",
        "merge_o = carve.take<float>(NW * GB * D);",
        "merge_o = carve.take<float>(NW * GB * D - 4);",
        "address",
        "use-after-poison",
    ),
    "misaligned vector": Plant(
        "kv_write", "low = load_pair(head + i)", "low = load_pair(head + i + (i > 0))", "address", "misaligned address"
    ),
    "two blocks write one slot": Plant(
        "kv_write",
        "const int slot = slots[blockIdx.x], lane = threadIdx.x & 31, warps = blockDim.x >> 5;\n  if (slot",
        "const int slot = slots[blockIdx.x & ~1], lane = threadIdx.x & 31, warps = blockDim.x >> 5;\n  if (slot",
        "thread",
        "data race",
    ),
    "no barrier between writing and reading": _without_barrier("decode", "every warp's part is there"),
    "no barrier before memory is used again": Plant(
        "prefill_mma", f"{LANDED}{LOAD}", f"{LOAD}{LANDED}", "thread", "data race", shows=True
    ),
    "no barrier behind asynchronous copies": _without_barrier("prefill_mma", STAGE),
    "no barrier before a wide tile is used again": _without_barrier("prefill_int8", STAGE),
    "no barrier behind the widening of int8": _without_barrier("prefill_int8", "the tile is wide"),
    "no barrier before a tile is overwritten": _without_barrier("prefill", "every thread is done with the tile before"),
    "no barrier in a sum of the block": _without_barrier("rms_norm", "one partial sum a warp is there"),
    "no barrier between counting and looking": _without_barrier("sample", "the next digit of the place is known"),
    "no barrier of a warp behind asynchronous copies": _without_barrier(
        "decode_mma",
        "this tile has landed for every lane, and every lane is done with the one before",
        "__syncwarp()",
        shows=False,
    ),
    "no barrier of a warp between writing and reading": _without_barrier(
        "prefill", "the weights of the warp's rows are there", "__syncwarp()"
    ),
}
