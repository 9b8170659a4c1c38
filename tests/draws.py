"""Parameters of draws for whoever draws as the standard sampler does: the CUDA kernel and the native one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
_OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "uniform": 0.5}


def columns(rows: int, **given: Any) -> Columns:
    """Parameters of ``rows`` rows, float64 but ``top_k`` int32; what is not given is off."""
    return {
        name: np.ascontiguousarray(
            np.broadcast_to(given.get(name, value), rows), np.int32 if name == "top_k" else np.float64
        )
        for name, value in _OFF.items()
    }


def random_parameters(rows: int, random: np.random.Generator, vocab: int) -> Columns:
    """Every cut on and off, and edges of each."""
    choose = random.choice
    return columns(
        rows,
        temperature=choose([0.0, 0.05, 0.7, 1.0, 3.0, 50.0], rows),
        top_k=choose([0, 0, 1, 2, 40, vocab - 1, vocab], rows),
        top_p=choose([1.0, 1.0, 0.0, 0.1, 0.9, 0.999], rows),
        min_p=choose([0.0, 0.0, 0.05, 0.5, 1.0], rows),
        uniform=choose([0.0, 1 - 2**-53, 0.25, 0.5, *random.random(4)], rows),
    )
