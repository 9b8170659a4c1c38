"""Weights for the native kernels: what they are kept as, packed or where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.errors import EngineFault
from ..models.blocks import BlockMatrix, Matrix
from ..models.gguf_header import TYPES_BY_NAME
from ..models.mapped import NAMES
from . import native_abi as abi

SOURCES = {torch.float32: abi.SRC_F32, torch.float16: abi.SRC_F16, torch.bfloat16: abi.SRC_BF16}
#: GGML type -> how it comes in, and how it is kept as it is.
BLOCKS = {
    "Q4_0": (abi.SRC_Q4_0, abi.Q4_HALF),
    "Q4_1": (abi.SRC_Q4_1, abi.Q4_HALF),
    "Q8_0": (abi.SRC_Q8_0, abi.Q8_HALF),
    "Q4_K": (abi.SRC_Q4_K, abi.Q4_FLOAT),
    "Q6_K": (abi.SRC_Q6_K, abi.Q8_FLOAT16),
}
LARGE_PAGE, PIECE = 2 << 20, 32 << 20  # bytes
#: Weight format -> how a matrix of numbers is kept; ``file``: as its own type says.
FORMATS = {"fp32": abi.FLOAT32, "bf16": abi.BFLOAT16, "q8": abi.Q8_HALF, "q4": abi.Q4_HALF}


class WeightRoom:
    """Memory for packed matrices, one behind the other in the order of their use, in pieces that the system can give
    in its large pages: a step of one row reads all of them once, and there a small page costs more to find than to
    read.  Zeros, taken from the machine when they are first written."""

    def __init__(self) -> None:
        self._left = np.zeros(0, np.uint8)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """``num_bytes`` on a 64-byte boundary."""
        whole = -(-num_bytes // 64) * 64
        if self._left.size < whole:
            raw = np.zeros(max(whole, PIECE) + LARGE_PAGE, np.uint8)
            self._left = raw[-raw.ctypes.data % LARGE_PAGE :]
        taken, self._left = self._left[:num_bytes], self._left[whole:]
        return taken


def kept_format(stored: str, weights: str) -> int:
    """How a matrix that the file keeps as ``stored`` is packed, by the weight format."""
    if stored in BLOCKS:
        return BLOCKS[stored][1]
    return FORMATS[weights] if weights != "file" else abi.BFLOAT16 if stored == "BF16" else abi.FLOAT32


class NativeMatrix:
    """A packed matrix; ``struct`` is what C++ sees of it."""

    def __init__(self, segments: list[abi.Segment], kept: list[Any], int8: bool) -> None:
        self._segments = (abi.Segment * len(segments))(*segments)
        self._kept = kept  # whatever the addresses point into
        self.nbytes = sum(part.nbytes for part in kept)
        self.outputs, self.inputs = sum(part.outputs for part in segments), segments[0].inputs
        self.struct = abi.Linear(self._segments, len(segments), self.outputs, self.inputs, int(int8))


class NativeTable:
    """The embedding as it came; read where it lies, which may be a mapped file."""

    def __init__(self, weight: Matrix) -> None:
        self._kept = weight
        source, address, row_bytes = rows_of(weight)
        self.nbytes = row_bytes * weight.shape[0]
        self.rows = weight.shape[0]
        self.struct = abi.Table(address, row_bytes, source, weight.shape[1])


def rows_of(weight: Matrix) -> tuple[int, int, int]:
    """(source, address, bytes of a row) of contiguous rows."""
    if isinstance(weight, BlockMatrix):
        kind = TYPES_BY_NAME[weight.type]
        rows, width = weight.shape
        if (
            weight.data.shape != (rows, width // kind.elements * kind.size)
            or width % kind.elements
            or not weight.data.flags.c_contiguous
        ):
            raise EngineFault(f"blocks of {weight.type}: {weight.data.shape} bytes for a matrix of {weight.shape}")
        return BLOCKS[weight.type][0], weight.data.ctypes.data, weight.data.shape[1]
    if weight.dtype not in SOURCES or not weight.is_contiguous() or weight.ndim != 2:
        raise EngineFault(f"a matrix of {weight.dtype} {list(weight.shape)} cannot be packed")
    return SOURCES[weight.dtype], weight.data_ptr(), weight.shape[1] * weight.element_size()


def pack_part(
    library: Any, engine: int, room: WeightRoom, part: Matrix, weights: str, first: int
) -> tuple[abi.Segment, NDArray[np.uint8]]:
    """``part`` as outputs from ``first`` on, and the memory that it lies in.  Raises EngineFault."""
    outputs, inputs = part.shape
    kept_as = kept_format(part.type if isinstance(part, BlockMatrix) else NAMES[part.dtype], weights)
    data = room.take(library.ms_segment_bytes(kept_as, outputs, inputs))
    segment = abi.Segment(data.ctypes.data, None, kept_as, outputs, inputs, first)
    if not isinstance(part, BlockMatrix):
        part = part.contiguous()
    source, address, row_bytes = rows_of(part)
    order = part.order if isinstance(part, BlockMatrix) else None
    if order is not None:
        order = np.ascontiguousarray(order, np.int32)
        if order.shape != (outputs,) or order.min() < 0 or order.max() >= outputs:
            raise EngineFault(f"an order of rows of shape {order.shape} for {outputs} rows")
    at = None if order is None else order.ctypes.data
    library.ms_pack(engine, segment, source, address, row_bytes, at)
    return segment, data
