"""What is compiled: units of kernels for the formats, head sizes and groups that models have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from mainspring.plugins.kernels.cuda.names import (
    HEAD_DIMS,
    AttentionSpec,
    attention_files,
    attention_instances,
    sample_instances,
)
from mainspring.plugins.kernels.cuda.source import unit

FORMATS = [("bf16", "bf16"), ("bf16", "int8"), ("fp16", "fp16"), ("fp16", "int8"), ("fp32", "fp32"), ("fp32", "int8")]
ROW_KERNELS = (
    "rms_norm<{0}, false>",
    "rms_norm<{0}, true>",
    "silu_mul<{0}>",
    "norm_heads<{0}, 64>",
    "norm_heads<{0}, 128>",
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A text, and the kernels of it with the dynamic shared memory of their launch."""

    label: str
    files: tuple[str, ...]
    kernels: dict[str, int]

    @property
    def text(self) -> str:
        return unit(*self.files)

    @property
    def digest(self) -> str:
        """Changes with the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def attention_unit(
    dtype: str, kv_dtype: str, head_dim: int, groups: tuple[int, ...], tensor_cores: bool = True
) -> Unit:
    """All kernels of these groups; with windows and soft caps where a head has 128 dims."""
    kernels: dict[str, int] = {}
    variants = [(False, 0.0), (True, 0.0), (True, 50.0)] if head_dim == 128 else [(False, 0.0)]
    for group in groups:
        for windows, softcap in variants:
            spec = AttentionSpec(
                dtype, kv_dtype, head_dim, 16, group, 1, windows=windows, softcap=softcap, tensor_cores=tensor_cores
            )
            kernels |= {one.name: one.shared_bytes for one in attention_instances(spec).values()}
    return Unit(f"{dtype}/{kv_dtype} {head_dim}", attention_files(spec), kernels)


def default_units() -> list[Unit]:
    """The default model: 64 dims, three query heads to a key/value head, in the types that ``auto`` chooses."""
    return [attention_unit(dtype, dtype, 64, (3,)) for dtype in ("bf16", "fp32")] + row_units()


def row_units() -> list[Unit]:
    """Everything that is not attention."""
    kinds = {"bf16": "bf16", "fp16": "f16", "fp32": "float"}
    rows = [
        Unit(f"rows {dtype}", ("rows.cu",), {kernel.format(kind): 0 for kernel in ROW_KERNELS})
        for dtype, kind in kinds.items()
    ]
    copies = {f"copy_blocks<{kind}>": 0 for kind in ("uint4", "u32", "u8")}
    draw = Unit("sample", ("sample.cu",), {one.name: one.shared_bytes for one in sample_instances().values()})
    return [*rows, Unit("blocks", ("blocks.cu",), copies), draw]


def every_unit(arch: int) -> list[Unit]:
    """Every format, head size and kind of group.  Without the tensor cores of 8.0, every one of them on CUDA cores."""
    return [_unit(arch, *one, head_dim) for one in FORMATS for head_dim in HEAD_DIMS] + row_units()


def _unit(arch: int, dtype: str, kv_dtype: str, head_dim: int) -> Unit:
    # Of one to eight query heads, and of more; CUDA cores take one, two or four at once.
    tensor_cores = arch >= 80
    groups = (4, 16) if tensor_cores and dtype != "fp32" else (1, 2, 4)
    return attention_unit(dtype, kv_dtype, head_dim, groups, tensor_cores)
