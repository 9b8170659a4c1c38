"""The header of a GGUF file: metadata and the list of tensors, read in one pass over a memory map.

Written here because the parser of the ``gguf`` package takes seconds over a vocabulary of 49,000 entries, at every
start.  Integers are little-endian; every length is checked against the file, so a cut-off file is an error and not a
wrong model.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from ...core.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
#: GGUF value type -> struct code.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


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


class _Cursor:
    """Reads values one after the other; running off the end raises ``struct.error`` or ``IndexError``."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        size = self.take("Q")
        end = self.at + size
        if end > len(self.data):
            raise IndexError(f"a string of {size} bytes at byte {self.at}")
        raw = self.data[self.at : end]
        self.at = end
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array(self.take("I"), self.take("Q"))
        if kind not in _SCALARS:
            raise ValueError(f"value type {kind} at byte {self.at}")
        return self.take(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        if count > len(self.data):
            raise IndexError(f"an array of {count} values at byte {self.at}")
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        values = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return list(values)


def read_header(path: Path) -> GgufHeader:
    """Read ``path``.  Raises ConfigError for what is not a whole GGUF file, or has a tensor type unknown to GGML."""
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            if head != MAGIC:
                raise ConfigError(f"{path}: is not a GGUF file (it begins with {head!r}, not {MAGIC!r})")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        return _parse(path, _Cursor(data))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: is damaged or cut off: {error}") from error


def _parse(path: Path, cursor: _Cursor) -> GgufHeader:
    cursor.at = len(MAGIC)
    version, num_tensors, num_fields = cursor.take("I"), cursor.take("Q"), cursor.take("Q")
    if version not in VERSIONS:
        raise ConfigError(f"{path}: GGUF version {version} is not supported (valid: {VERSIONS[0]}, {VERSIONS[1]})")
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.take("I"))
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


def _entry(path: Path, cursor: _Cursor) -> tuple[str, GGMLQuantizationType, tuple[int, ...], int]:
    name = cursor.text()
    shape = tuple(reversed([int(cursor.take("Q")) for _ in range(cursor.take("I"))]))
    kind = cursor.take("I")
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:
        raise ConfigError(f"{path}: tensor {name!r} has the unknown type {kind}") from None
    return name, known, shape or (1,), cursor.take("Q")
