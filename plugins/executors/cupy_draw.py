"""Drawing on the device: the standard sampler's plan, its kernel, and ids that the next step takes without the host.

Of a step's logits only ids leave the device.  They stay there too, for one step: with two steps in flight the next one
is launched before anybody has seen them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels.cuda.sampling import Sampling
from .cupy_buffers import Staging
from .cupy_device import Device, Wait
from .standard_plan import StandardPlan, failed

#: Banned ids of a row, and arrays, that there is room for from the start.
_BANS, _ARRAYS = 8, 7


class Drawn:
    """What a step draws, while it may not have ended.  ``ids``: int32 ``[rows]`` on the device."""

    def __init__(self, plan: StandardPlan, ids: torch.Tensor, here: torch.Tensor, wait: Wait) -> None:
        """``here`` int32 ``[2, rows]``: ids and states in memory of the host, once ``wait`` returns."""
        self.ids = ids
        self._plan, self._here, self._wait = plan, here, wait

    def read(self) -> tuple[list[int], list[tuple[int, str]]]:
        """Ids, and the rows that cannot be drawn from with the reason; waits for the step's end."""
        self._wait()
        ids, states = self._here.tolist()
        return ids, failed(self._plan, states)


class Draws:
    """The kernels of drawing and their memory, in two places that steps use in turn."""

    def __init__(self, device: Device) -> None:
        self._device, self._kernels, self._staging = device, Sampling(device.raw_module), Staging(device)
        self._turn = 0
        self._there = [torch.empty(0, dtype=torch.int32, device=device.device) for _ in range(2)]
        self._here = [device.host_memory((0,), torch.int32) for _ in range(2)]
        self._plan: StandardPlan | None = None
        self._columns: list[torch.Tensor] = []

    def reserve(self, num_rows: int) -> None:
        """Room for steps of so many rows.  What was drawn before stays where it is."""
        self._staging.reserve(num_rows * (4 * 2 + 1 + 2 + 2 * _BANS), _ARRAYS)
        if 2 * num_rows > self._there[0].numel():
            device = self._device
            self._there = [torch.empty(2 * num_rows, dtype=torch.int32, device=device.device) for _ in range(2)]
            self._here = [device.host_memory((2 * num_rows,), torch.int32) for _ in range(2)]

    @property
    def num_bytes(self) -> int:
        """Taken on the device."""
        return self._staging.num_bytes + sum(part.nbytes for part in self._there)

    def bring(self, plan: StandardPlan | None, takes: Sequence[tuple[int, int]]) -> None:
        """A step's parameters (None: it draws nothing here) and its ``takes``, (token, row of the step before)."""
        self._plan = plan
        columns: list[NDArray[Any]] = [np.asarray(takes, np.int32).reshape(-1, 2)]
        if plan is not None:
            wide = (plan.temperature, plan.top_p, plan.min_p, plan.uniform)
            bans = np.stack((plan.banned_rows, plan.banned_ids), 1).astype(np.int32)
            columns += [*(column.astype(np.float64) for column in wide), plan.top_k, bans]
            self._staging.reserve(sum(column.nbytes for column in columns) // 4, _ARRAYS)
        if any(column.size for column in columns):
            self._columns = self._staging.upload(columns)

    def take(self, ids: torch.Tensor, before: Drawn) -> None:
        """Put what ``before`` draws into ``ids`` ``[tokens]`` of the step that was brought."""
        takes = self._columns[0]
        self._kernels.take(ids, before.ids, takes, num_pairs=len(takes))

    def draw(self, logits: torch.Tensor) -> Drawn:
        """One id for each row of float32 ``logits`` ``[rows, vocab]``, which may be overwritten."""
        plan, (rows, vocab) = self._plan, logits.shape
        assert plan is not None
        _, temperature, top_p, min_p, uniform, top_k, bans = self._columns
        self._turn ^= 1
        there, here = self._there[self._turn][: 2 * rows].view(2, rows), self._here[self._turn][: 2 * rows]
        ids, states = there
        self._kernels.ban(logits, bans, num_pairs=len(bans), vocab=vocab)
        self._kernels.sample(ids, states, logits, temperature, top_k, top_p, min_p, uniform, rows=rows, vocab=vocab)
        here = here.view(2, rows)
        here.copy_(there, non_blocking=True)
        return Drawn(plan, ids, here, self._device.mark())
