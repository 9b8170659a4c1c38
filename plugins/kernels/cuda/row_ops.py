"""Launchers of the operators between matrix products; conventions as in ``launch``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .launch import Array, MakeModule, address
from .names import TYPES
from .source import unit


class RowOps:
    """The operators between matrix products, in one dtype."""

    def __init__(self, make: MakeModule, dtype: str, head_dim: int, options: Sequence[str] = ()) -> None:
        kind = TYPES[dtype]
        self.head_dim = head_dim
        names = {
            "rms_norm": f"rms_norm<{kind}, false>",
            "rms_norm_residual": f"rms_norm<{kind}, true>",
            "norm_heads": f"norm_heads<{kind}, {head_dim}>",
            "silu_mul": f"silu_mul<{kind}>",
        }
        module = make(code=unit("rows.cu"), options=tuple(options), name_expressions=list(names.values()))
        self._functions = {key: module.get_function(name) for key, name in names.items()}

    def rms_norm(
        self, out: Array, x: Array, weight: Array, eps: float, *, rows: int, width: int, residual: Array | None = None
    ) -> None:
        """``out`` = norm of ``x``, or of ``residual`` after ``residual += x``: all T ``[rows, width]``, width a
        multiple of 4.

        ``weight`` T ``[width]``.  ``out`` is another array than ``x``.
        """
        threads = min(1024, -(-width // 4 // 32) * 32 or 32)
        args = (address(out), address(residual), address(x), address(weight), np.int32(width), np.float32(eps))
        if rows:
            self._functions["rms_norm" if residual is None else "rms_norm_residual"](
                (rows,), (threads,), args, shared_mem=threads // 32 * 4
            )

    def norm_heads(
        self,
        qkv: Array,
        query: Array,
        key: Array,
        eps: float,
        *,
        num_tokens: int,
        num_heads: int,
        num_kv_heads: int,
    ) -> None:
        """Norm of each query and key head of ``qkv`` ``[num_tokens, num_heads + 2 * num_kv_heads, head_dim]``, in
        place.

        ``query`` and ``key`` T ``[head_dim]``: weights.
        """
        stride = (num_heads + 2 * num_kv_heads) * self.head_dim
        args = (
            address(qkv), address(query), address(key), np.int32(num_heads), np.int32(num_kv_heads), np.int64(stride),
            np.float32(eps),
        )  # fmt: skip
        if num_tokens:
            self._functions["norm_heads"]((num_tokens,), (256,), args)

    def silu_mul(self, out: Array, gate_up: Array, *, rows: int, width: int) -> None:
        """``out`` T ``[rows, width]`` = silu(left half) * right half of ``gate_up`` ``[rows, 2 * width]``; width a
        multiple of 4."""
        if rows:
            args = (address(out), address(gate_up), np.int32(width))
            self._functions["silu_mul"]((-(-width // 1024), rows), (256,), args)
