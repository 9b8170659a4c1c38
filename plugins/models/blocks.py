"""Matrices that stay in the blocks of their file, for backends that multiply them as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class BlockMatrix:
    """Rows of GGML blocks: ``data`` uint8 ``[outputs, bytes per row]``, contiguous, perhaps a mapped file.

    ``order``: which row of ``data`` each output is, None for all in order.
    """

    type: str
    shape: tuple[int, int]
    data: NDArray[np.uint8]
    order: NDArray[np.int32] | None = None


#: Rows of numbers, or of blocks.
Matrix: TypeAlias = torch.Tensor | BlockMatrix


class Stacked(tuple[Matrix, ...]):
    """Matrices whose outputs follow each other, of the same inputs."""

    __slots__ = ()


def parts_of(matrix: Matrix | Stacked) -> tuple[Matrix, ...]:
    """The matrices of a stack, or the one that there is."""
    return tuple(matrix) if isinstance(matrix, Stacked) else (matrix,)
