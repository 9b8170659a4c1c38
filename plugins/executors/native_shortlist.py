"""The coarse head by which greedy tokens are found without reading all of the head (``shortlist.hpp``)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import native_abi as abi
from .batch import Ints, StepBatch
from .native_weights import WeightRoom

#: Formats of heads that a coarse one is smaller than.
LARGER = (abi.FLOAT32, abi.BFLOAT16, abi.Q8_HALF, abi.Q8_FLOAT16)
#: Inputs of the coarse head in 8 bits; weights from which on it pays; tokens whose inputs say which inputs are large.
FEW, LEAST_WEIGHTS, PROBES = 32, 1 << 22, 16


def worth_it(kept_as: int, outputs: int, inputs: int) -> bool:
    """Whether such a head gets a coarse one."""
    return kept_as in LARGER and inputs >= 2 * FEW and outputs * inputs >= LEAST_WEIGHTS


def shortlist_bytes(library: Any, outputs: int, inputs: int) -> int:
    """What the coarse head of ``outputs`` by ``inputs`` takes in memory, its order and errors included."""
    return sum(_part_bytes(library, outputs, inputs)) + 4 * (inputs + outputs)


def _part_bytes(library: Any, outputs: int, inputs: int) -> tuple[int, int]:
    """Of the few inputs, of the rest."""
    few: int = library.ms_segment_bytes(abi.Q8_HALF, outputs, FEW)
    rest: int = library.ms_segment_bytes(abi.Q4_HALF, outputs, inputs - FEW)
    return few, rest


class NativeShortlist:
    """A coarse head; ``struct`` is what C++ sees of it.  Not ``usable`` if the head has NaN or huge weights."""

    def __init__(self, library: Any, engine: int, room: WeightRoom, head: abi.Segment, order: Ints) -> None:
        """``head``: packed in a format of ``LARGER``, no bias.  ``order``: its inputs, int32 ``[inputs]``, those first
        that are kept in 8 bits."""
        outputs, inputs = head.outputs, head.inputs
        self._order = order
        self._data = [room.take(size) for size in _part_bytes(library, outputs, inputs)]
        few, rest = (part.ctypes.data for part in self._data)
        self._few = abi.Segment(few, None, abi.Q8_HALF, outputs, FEW, 0)
        self._rest = abi.Segment(rest, None, abi.Q4_HALF, outputs, inputs - FEW, 0)
        self._error = np.empty(outputs, np.float32)
        self.struct = abi.Shortlist(
            abi.Linear(ctypes.pointer(self._few), 1, outputs, FEW, 0),
            abi.Linear(ctypes.pointer(self._rest), 1, outputs, inputs - FEW, 1),
            order.ctypes.data,
            self._error.ctypes.data,
        )
        measures = np.empty((3, outputs), np.float32)
        library.ms_pack_coarse(engine, self.struct, head, measures.ctypes.data)
        self.nbytes = sum(part.nbytes for part in self._data) + self._error.nbytes + order.nbytes
        self.usable = bool(np.isfinite(measures).all())
        if not self.usable:
            return
        apart_few, apart_rest, size = measures.astype(np.float64)
        struct = self.struct
        # With any units it is right, with such that all three weigh alike it is closest.
        ratios = [part.sum() / apart_rest.sum() for part in (apart_few, size)]
        struct.few_unit, struct.size_unit = np.clip(ratios, 1e-4, 1e4)
        error = np.maximum.reduce([apart_rest, apart_few / struct.few_unit, size / struct.size_unit])
        self._error[:] = np.nextafter(error.astype(np.float32), np.float32(np.inf))


def probe(vocab_size: int) -> StepBatch:
    """A step of single tokens from all over the vocabulary that attend to nothing and are written nowhere."""
    tokens = min(PROBES, vocab_size)
    nothing = np.zeros(tokens, np.int32)
    ids = (np.arange(tokens) * (vocab_size // tokens)).astype(np.int32)
    cuts, tables = np.arange(tokens + 1, dtype=np.int32), np.full((tokens, 1), -1, np.int32)
    return StepBatch(ids, nothing, nothing - 1, cuts, nothing, tables, np.zeros(0, np.int32), tokens, ())


def order_of(energies: NDArray[np.float64]) -> Ints:
    """Inputs with the most energy (sum of squares) first, int32 ``[inputs]`` like ``energies``; that of a NaN last."""
    return np.ascontiguousarray(np.argsort(-np.nan_to_num(energies, nan=-1.0), kind="stable"), np.int32)
