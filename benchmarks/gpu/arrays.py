"""NumPy arrays of storage formats on a device and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def up(array: Any, device: torch.device) -> Any:
    """A copy on the device; 16 and 32 unsigned bits travel as signed ones.  None stays None."""
    if array is None:
        return None
    signed = {np.uint16: np.int16, np.uint32: np.int32}.get(array.dtype.type)
    return torch.from_numpy(np.array(array.view(signed) if signed else array, order="C")).to(device)


def down(tensor: torch.Tensor, like: Any) -> Any:
    """What ``up`` brought there, in the format of ``like``."""
    return tensor.cpu().numpy().view(like.dtype)
