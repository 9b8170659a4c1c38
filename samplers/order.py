"""Tokens in order of (descending logit, ascending id), NaN first: one integer key holds both.

Equal keys do not occur, so any sort will do, which is much faster than a stable one; and an order of integers is the
same on every device.  On a CPU NumPy does it: its sort and its partition are vectorised, and its operations on a few
thousand numbers cost a fraction of torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_LOW, _MAGNITUDE = 0xFFFFFFFF, 0x7FFFFFFF


def on_cpu(tensor: Tensor) -> bool:
    """Whether NumPy can work on the tensor's memory."""
    return tensor.device.type == "cpu"


def leading(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The ``width`` leading tokens of each row of float32 ``logits`` ``[rows, vocab]``: values, and their ids as int64.

    Which of the equals of the last value are among them is chance on a device.
    """
    whole = width == logits.shape[1]
    if on_cpu(logits):
        rows = logits.numpy()
        found = _sorted(rows, np.arange(width)) if whole else _most(rows, width)
        return torch.from_numpy(found[0]), torch.from_numpy(found[1])
    if whole:
        return in_order(logits, torch.arange(width, device=logits.device).expand_as(logits))
    return in_order(*logits.topk(width, dim=-1, sorted=False))


def in_order(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row of float32 ``values`` with their int64 ``ids``."""
    plain = torch.where(values.isnan(), torch.nan, values) + 0.0  # one kind of NaN, and -0.0 becomes its equal 0.0
    keys = (~_comparable(plain.view(torch.int32))).long() << 32 | ids
    keys = keys.sort(dim=-1).values
    return _comparable(~(keys >> 32).int()).view(torch.float32), keys & _LOW


def _comparable(bits: Any) -> Any:
    """A float's bits, made to compare like the float; and back again."""
    return bits ^ ((bits >> 31) & _MAGNITUDE)


def _most(rows: npt.NDArray[np.float32], width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    parts = []
    for row in rows:
        edge = np.partition(row, -width)[-width]
        ids = np.flatnonzero(~(row < edge))  # what is equal to it, and every NaN
        values, ordered = _sorted(row[ids], ids)
        parts.append((values[:width], ordered[:width]))
    return np.stack([values for values, _ in parts]), np.stack([ids for _, ids in parts])


def _sorted(
    values: npt.NDArray[np.float32], ids: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """``in_order`` with little memory: what is as large as a vocabulary is changed where it is."""
    plain = values + np.float32(0)
    if (strange := np.isnan(plain)).any():
        plain[strange] = np.nan
    bits = plain.view(np.int32)
    bits ^= (bits >> 31) & _MAGNITUDE
    keys = np.invert(bits, out=bits).astype(np.int64)
    keys <<= 32
    keys |= ids
    keys.sort(axis=-1)
    bits = np.invert((keys >> 32).astype(np.int32))
    keys &= _LOW
    return _comparable(bits).view(np.float32), keys
