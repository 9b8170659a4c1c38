"""The header of a GGUF file: metadata and the list of tensors, read in one pass over a memory map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ...core.errors import ConfigError
from .gguf_values import DAMAGE, Cursor, open_gguf, read_counts

DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: ``shape`` rows first, ``type`` as GGML names it, ``data`` bytes ``[rows..., bytes per row]``."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """``metadata`` values are numbers, strings, booleans or lists of those."""

    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_header(path: Path) -> GgufHeader:
    """Read ``path``.  Raises ConfigError for what is not a whole GGUF file, or has a tensor type unknown to GGML."""
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
        elements, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % elements:
            raise ConfigError(f"{path}: tensor {name!r}: rows of {shape[-1]} do not divide into blocks of {elements}")
        row_bytes = shape[-1] // elements * size
        first = begin + offset
        end = first + math.prod(shape[:-1]) * row_bytes
        if end > len(raw):
            raise ConfigError(f"{path}: is cut off: tensor {name!r} ends at byte {end}, the file at {len(raw)}")
        tensors.append(GgufTensor(name, kind, shape, raw[first:end].reshape(*shape[:-1], row_bytes)))
    return GgufHeader(metadata, tuple(tensors))


def _entry(path: Path, cursor: Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = cursor.text()
    shape = tuple(reversed(cursor.take(f"{cursor.take('I')[0]}Q")))
    (kind,) = cursor.take("I")
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise ConfigError(f"{path}: tensor {name!r} has the unknown type {kind}") from None
    return name, known, shape or (1,), cursor.take("Q")[0]
