"""Which template instances a model's attention needs, and the shared memory each is launched with."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Names of number formats in the configuration -> types of the kernels.
TYPES = {"fp32": "float", "fp16": "f16", "bf16": "bf16", "int8": "i8"}
HEAD_DIMS = (64, 80, 96, 128, 256)
WINDOW, SOFTCAP = 1, 2  # attention.cuh: enum Flags


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """One model's attention on one device.  ``dtype``: activations; ``kv_dtype``: the pool; names as in ``TYPES``.

    ``windows``: some layer has a sliding window.  ``softcap``: scores are bent by ``softcap * tanh(score /
    softcap)``, 0 for not.  ``scale``: of the scores, 0 for ``1 / sqrt(head_dim)``.  ``tensor_cores``: compute
    capability 8.0 or later.
    """

    dtype: str
    kv_dtype: str
    head_dim: int
    block_size: int
    num_heads: int
    num_kv_heads: int
    windows: bool = False
    softcap: float = 0.0
    scale: float = 0.0
    tensor_cores: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in ("fp32", "fp16", "bf16") or self.kv_dtype not in TYPES:
            raise ValueError(f"dtype {self.dtype!r}, kv_dtype {self.kv_dtype!r}: no kernel has these types")
        if self.head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim {self.head_dim}: the kernels have {', '.join(map(str, HEAD_DIMS))}")
        if self.num_heads % self.num_kv_heads or self.block_size < 1:
            raise ValueError(
                f"{self.num_heads} heads on {self.num_kv_heads} key/value heads, blocks of {self.block_size}"
            )

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def mma(self) -> bool:
        """Whether decode and prefill run on tensor cores; else on CUDA cores, which take everything."""
        fits = self.dtype != "fp32" and self.kv_dtype in (self.dtype, "int8")
        return self.tensor_cores and fits and self.block_size % 16 == 0

    @property
    def types(self) -> str:
        """The first template arguments of its kernels."""
        return f"{TYPES[self.dtype]}, {TYPES[self.kv_dtype]}, {self.head_dim}, {self.block_size}"

    @property
    def softmax_scale(self) -> float:
        return self.scale or 1 / math.sqrt(self.head_dim)


@dataclass(frozen=True, slots=True)
class Instance:
    """A template instance, as the compiler is asked for it, and its launch: threads and shared memory of a block.

    ``heads``: query heads a block of decode serves; ``rows``: (token, head) rows a tile of prefill has.
    """

    name: str
    threads: int
    shared_bytes: int = 0
    heads: int = 1
    rows: int = 0


def _carve(*arrays: tuple[int, int]) -> int:
    """Bytes of ``(size, alignment)`` laid out one behind the other, as ``Carve`` does."""
    used = 0
    for size, align in arrays:
        used = -(-used // align) * align + size
    return used


def _stride(row_bytes: int) -> int:
    """Bytes of a row in shared memory, as ``tiles.cuh: Rows`` lays it out."""
    chunks = row_bytes // 16
    return row_bytes if chunks % 8 == 0 or chunks % 2 else row_bytes + 16


def _decode_mma(spec: AttentionSpec, flags: int) -> Instance:
    dim = spec.head_dim
    tiles = 2 if spec.group > 8 and dim <= 128 else 1  # of eight heads; with more the accumulators leave the registers
    element = 1 if spec.kv_dtype == "int8" else 2
    warps = 2 if dim * element > 256 else 4
    stages = 4 if dim * element <= 160 else 3
    stage = 2 * 16 * _stride(dim * element) + (128 if element == 1 else 0)
    return Instance(
        name=f"decode_mma<{spec.types}, {tiles}, {warps}, {stages}, {flags}>",
        threads=warps * 32,
        shared_bytes=_carve((warps * stages * stage, 128), (warps * tiles * 64, 16)),
        heads=8 * tiles,
    )


def _decode(spec: AttentionSpec, flags: int) -> Instance:
    dim, warps = spec.head_dim, 4
    most = 2 if dim == 80 else 4  # a lane of 80 holds 20 dims of each head
    heads = min(most, 1 << (spec.group - 1).bit_length())
    unroll = {64: 4, 128: 4, 80: 1}.get(dim, 2)
    return Instance(
        name=f"decode<{spec.types}, {heads}, {warps}, {unroll}, {flags}>",
        threads=warps * 32,
        shared_bytes=_carve((warps * heads * dim * 4, 16), (warps * heads * 8, 16)),
        heads=heads,
    )


def _prefill_mma(spec: AttentionSpec, flags: int, kernel: str) -> Instance:
    dim = spec.head_dim
    # Two tiles of 16 rows for each warp where the registers hold their results: with a window and without alike.
    crowded = spec.windows or (kernel == "prefix_mma" and spec.kv_dtype == "int8")
    double = dim < 128 or (dim == 128 and not crowded)
    rows = 128 if double else 64
    tokens = 32 if dim > (64 if double else 128) else 64
    wide = _stride(dim * 2)
    arrays = [(rows * wide, 128)]
    if spec.kv_dtype == "int8":
        arrays += [(2 * tokens * dim, 128)] * 2 + [
            (4 * tokens * 4, 128),
            (2 * tokens * wide, 128),
            (2 * tokens * 4, 16),
        ]
    else:
        arrays += [(2 * tokens * wide, 128)] * 2
    return Instance(f"{kernel}<{spec.types}, {tokens}, {rows // 64}, {flags}>", 128, _carve(*arrays), rows=rows)


def _prefill(spec: AttentionSpec, flags: int) -> Instance:
    dim, rows = spec.head_dim, 32
    tokens = 32 if dim <= 128 else 8  # a block of compute capability 7.5 has 64 KiB of shared memory
    stride = (dim + 4) * 4
    shared = _carve((rows * stride, 16), (tokens * stride, 16), (tokens * stride, 16), (rows * (tokens + 4) * 4, 16))
    return Instance(f"prefill<{spec.types}, {flags}>", 128, shared, rows=rows)


def attention_files(spec: AttentionSpec) -> tuple[str, ...]:
    """The files that hold the instances of ``spec``."""
    own = ("decode_mma.cu", "prefill_mma.cu") if spec.mma else ("decode.cu", "prefill.cu")
    return ("kv_write.cu", "reduce.cu", *own)


def attention_instances(spec: AttentionSpec) -> dict[str, Instance]:
    """``kv_write``, ``rope_write``, ``reduce``, and ``decode`` and ``prefill`` without and, where some layer needs
    it, with a window (``decode_window``, ``prefill_window``); ``prefix`` where tensor cores run."""
    softcap = SOFTCAP if spec.softcap else 0
    decode, prefill = (_decode_mma, _prefill_mma) if spec.mma else (_decode, None)
    out = {
        "kv_write": Instance(f"kv_write<{spec.types}>", 128),
        "rope_write": Instance(f"rope_write<{spec.types}>", 256),
        "reduce": Instance(f"reduce<{TYPES[spec.dtype]}, {spec.head_dim}>", spec.head_dim),
    }
    for suffix, window in [("", 0), ("_window", WINDOW)][: 1 + spec.windows]:
        flags = softcap | window
        out["decode" + suffix] = decode(spec, flags)
        out["prefill" + suffix] = prefill(spec, flags, "prefill_mma") if prefill else _prefill(spec, flags)
    if spec.mma:
        out["prefix"] = _prefill_mma(spec, softcap, "prefix_mma")
    return out


def sample_instances() -> dict[str, Instance]:
    """``sample``, the draw of tokens: two histograms of 2,048 bins, a place, two sums, a count for each warp, an id;
    and what goes before and behind it."""
    shared = _carve(
        (2048 * 8, 16), (2048 * 8, 16), (2048 * 4, 16), (2048 * 4, 16), (32, 16), (16, 16), (128, 16), (4, 16)
    )
    small = {name: Instance(name, 128) for name in ("ban_tokens", "take_drawn")}
    return {"sample": Instance("sample", 512, shared), **small}
