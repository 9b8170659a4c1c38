"""Memory of a step, taken once: where a step's arrays arrive on the device, and where its results go.

A buffer is made the first time that its place is asked for, with room for the largest step.  Loading ends with a step
that asks for every place, so later steps allocate nothing, and what they name keeps its address: a captured graph stays
valid for as long as nothing grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .cupy_device import Device, Wait

#: int32 elements to which an array's place is aligned: 16 bytes, what one load of a kernel may take.
_ALIGN = 4


class Buffers:
    """Named matrices of up to ``capacity`` rows."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.capacity = device, 0
        self._made: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}

    def reserve(self, capacity: int) -> None:
        """From now on every matrix has room for ``capacity`` rows.  Those that are too small are dropped."""
        if capacity > self.capacity:
            self.capacity = capacity
            self._made.clear()

    def take(self, name: str, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
        """The first ``rows`` of the matrix ``name`` of that width: the same memory each time, whatever it holds."""
        key = name, width, dtype
        if (whole := self._made.get(key)) is None:
            whole = self._made[key] = torch.empty(self.capacity, width, dtype=dtype, device=self.device)
        return whole[:rows]

    @property
    def num_bytes(self) -> int:
        """What is taken."""
        return sum(made.nbytes for made in self._made.values())


class Staging:
    """Small arrays, brought to the device by one copy that nobody waits for.

    The copy reads one of two places of the host in turn, so that one step's arrays are written while those of the step
    before may still be on their way.  On the device they have one place: copies and kernels run there one after the
    other.
    """

    def __init__(self, device: Device) -> None:
        self._device, self._turn = device, 0
        self._hosts = [device.host_memory((0,), torch.int32) for _ in range(2)]
        self._arrived: list[Wait] = [_nothing, _nothing]
        self._there = torch.empty(0, dtype=torch.int32, device=device.device)

    def reserve(self, elements: int, arrays: int) -> None:
        """Room for ``elements`` of four bytes in up to ``arrays`` arrays."""
        elements += arrays * _ALIGN
        if elements > self._there.numel():
            self._hosts = [self._device.host_memory((elements,), torch.int32) for _ in range(2)]
            self._arrived = [_nothing, _nothing]
            self._there = torch.empty(elements, dtype=torch.int32, device=self._device.device)

    def upload(self, arrays: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
        """``arrays`` of int32 or float64 on the device, in their shapes: one behind the other, so that equal shapes
        mean equal places.  The next upload overwrites them, behind all that was launched until then."""
        self._turn ^= 1
        self._arrived[self._turn]()
        host = self._hosts[self._turn]
        here, places, at = host.numpy(), [], 0
        for array in arrays:
            words = array.reshape(-1).view(np.int32)
            here[at : at + words.size] = words
            place = self._there[at : at + words.size]
            places.append((place.view(torch.float64) if array.dtype == np.float64 else place).view(array.shape))
            at = -(-(at + words.size) // _ALIGN) * _ALIGN
        self._there[:at].copy_(host[:at], non_blocking=True)
        self._arrived[self._turn] = self._device.mark()
        return places

    @property
    def num_bytes(self) -> int:
        """What is taken on the device."""
        return self._there.nbytes


def _nothing() -> None:
    pass
