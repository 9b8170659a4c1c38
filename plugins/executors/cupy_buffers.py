"""Memory of a step, taken once: where a step's arrays arrive on the device, and where its results go.

A buffer is made the first time that its place is asked for, with room for the largest step.  Loading ends with a step
that asks for every place, so later steps allocate nothing, and what they name keeps its address: a captured graph stays
valid for as long as nothing grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .batch import Ints
from .cupy_device import Device

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
    """Small int32 arrays, brought to the device by one copy."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = device.host_memory((0,), torch.int32)
        self._there = torch.empty(0, dtype=torch.int32, device=device.device)

    def reserve(self, elements: int, arrays: int) -> None:
        """Room for ``elements`` in up to ``arrays`` arrays."""
        elements += arrays * _ALIGN
        if elements > self._there.numel():
            self._host = self._device.host_memory((elements,), torch.int32)
            self._there = torch.empty(elements, dtype=torch.int32, device=self._device.device)

    def upload(self, arrays: Sequence[Ints]) -> list[torch.Tensor]:
        """``arrays`` on the device, in their shapes: one behind the other, so that equal shapes mean equal places.

        Waits for all that was launched before: it may still read what the last upload brought."""
        self._device.synchronize()
        here, places, at = self._host.numpy(), [], 0
        for array in arrays:
            here[at : at + array.size] = array.reshape(-1)
            places.append(self._there[at : at + array.size].view(array.shape))
            at = -(-(at + array.size) // _ALIGN) * _ALIGN
        self._there[:at].copy_(self._host[:at], non_blocking=True)
        return places

    @property
    def num_bytes(self) -> int:
        """What is taken on the device."""
        return self._there.nbytes
