"""Matrices in the layout of oneDNN, packed once: it costs no more than the plain product at one row and is 1.5 to 5
times as fast above."""

from __future__ import annotations

import torch
from torch.nn import functional


def has_bf16_instructions() -> bool:
    """Whether this CPU multiplies bf16 natively; emulated bf16 is many times slower than float32."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(torch.cpu._is_avx512_bf16_supported())


class PackedLinear:
    """A matrix in oneDNN's layout, or as it is where oneDNN cannot take it."""

    __slots__ = ("bias", "nbytes", "packed", "plain")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self.bias = bias
        self.packed: torch.Tensor | None = None
        self.plain: torch.Tensor | None = None
        native = weight.dtype == torch.float32 or has_bf16_instructions()
        if torch._C._has_mkldnn and native:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        else:
            self.plain = weight.clone()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return out
        assert self.plain is not None
        return functional.linear(x, self.plain, self.bias)
