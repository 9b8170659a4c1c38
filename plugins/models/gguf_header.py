"""The header of a GGUF file: metadata and the list of tensors, read in one pass over a memory map."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ConfigError
from .gguf_values import DAMAGE, Cursor, open_gguf, read_counts

DEFAULT_ALIGNMENT = 32


class StoredType(NamedTuple):
    """A type of GGML: rows are blocks of ``elements`` values in ``size`` bytes."""

    number: int
    name: str
    elements: int
    size: int


#: What can be read.  Stated here because importing the ``gguf`` package, which is needed only to dequantise, takes a
#: tenth of a second at every start.
TYPES = {
    kind.number: kind
    for kind in (
        StoredType(0, "F32", 1, 4),
        StoredType(1, "F16", 1, 2),
        StoredType(30, "BF16", 1, 2),
        StoredType(8, "Q8_0", 32, 34),
        StoredType(2, "Q4_0", 32, 18),
        StoredType(3, "Q4_1", 32, 20),
        StoredType(12, "Q4_K", 256, 144),
        StoredType(14, "Q6_K", 256, 210),
    )
}
#: The same by name.
TYPES_BY_NAME = {kind.name: kind for kind in TYPES.values()}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: ``shape`` rows first, ``type`` as GGML names it, ``data`` bytes ``[rows..., bytes per row]``."""

    name: str
    type: StoredType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``metadata`` values are numbers, strings, booleans or lists of those.  ``mapped``: what the tensors lie in."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]
    mapped: mmap.mmap

    def give_back(self) -> None:
        """Let go of the pages read so far; data that is used later reads them again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def read_header(path: Path) -> GgufHeader:
    """Read ``path``.  Raises ConfigError for what is not a whole GGUF file, or has a tensor of a type that cannot be
    read."""
    cursor = open_gguf(path)
    try:
        return _parse(path, cursor)
    except DAMAGE as error:
        raise ConfigError(f"{path}: is damaged or cut off: {error}") from error


def _parse(path: Path, cursor: Cursor) -> GgufHeader:
    num_tensors, num_keys = read_counts(path, cursor)
    metadata = cursor.metadata(num_keys)
    entries = [_entry(path, cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    begin = -(-cursor.at // alignment) * alignment
    raw = np.frombuffer(cursor.data, np.uint8)
    tensors = []
    for name, kind, shape, offset in entries:
        if shape[-1] % kind.elements:
            raise ConfigError(
                f"{path}: tensor {name!r}: rows of {shape[-1]} do not divide into blocks of {kind.elements}"
            )
        row_bytes = shape[-1] // kind.elements * kind.size
        first = begin + offset
        end = first + math.prod(shape[:-1]) * row_bytes
        if end > len(raw):
            raise ConfigError(f"{path}: is cut off: tensor {name!r} ends at byte {end}, the file at {len(raw)}")
        tensors.append(GgufTensor(name, kind, shape, raw[first:end].reshape(*shape[:-1], row_bytes)))
    return GgufHeader(metadata, tuple(tensors), cursor.data)


def _entry(path: Path, cursor: Cursor) -> tuple[str, StoredType, tuple[int, ...], int]:
    name = cursor.text()
    shape = tuple(reversed(cursor.take(f"{cursor.take('I')[0]}Q")))
    (number,) = cursor.take("I")
    if number not in TYPES:
        raise ConfigError(
            f"{path}: tensor {name!r} has {_name_of(number)}, supported are {', '.join(t.name for t in TYPES.values())}"
        )
    return name, TYPES[number], shape or (1,), cursor.take("Q")[0]


def _name_of(number: int) -> str:
    from gguf import GGMLQuantizationType

    try:
        return f"type {GGMLQuantizationType(number).name}"
    except ValueError:
        return f"the unknown type {number}"
