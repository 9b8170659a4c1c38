"""The key-value part of a GGUF file: a few megabytes at its front, read without NumPy and without the tensors.

Written here because the parser of the ``gguf`` package takes seconds over a vocabulary of 49,000 entries, at every
start.  Integers are little-endian; every length is checked against the file, so a cut-off file is an error and not a
wrong model.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
#: GGUF value type -> struct code.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
#: What a damaged file makes a cursor raise.
DAMAGE = (struct.error, IndexError, ValueError, OverflowError, RecursionError)


class Cursor:
    """Reads values one after the other; running off the end or nonsense raises one of ``DAMAGE``."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, len(MAGIC)

    def take(self, codes: str) -> tuple[Any, ...]:
        """The values of a struct format, without padding."""
        values = struct.unpack_from("<" + codes, self.data, self.at)
        self.at += struct.calcsize("<" + codes)
        return values

    def texts(self, count: int) -> list[str]:
        """``count`` strings.  One loop and no call for each: a vocabulary has hundreds of thousands."""
        data, at, end, size_at, made = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            (size,) = size_at(data, at)
            at += 8 + size
            if at > end:
                raise IndexError(f"a string of {size} bytes at byte {at - size} ends behind the file")
            made.append(data[at - size : at].decode("utf-8", "replace"))
        self.at = at
        return made

    def text(self) -> str:
        return self.texts(1)[0]

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])[0]
        if kind != _ARRAY:
            raise ValueError(f"value type {kind} at byte {self.at}")
        element, count = self.take("IQ")
        if count > len(self.data) - self.at:
            raise IndexError(f"an array of {count} values at byte {self.at} ends behind the file")
        if element in _SCALARS:
            return list(self.take(f"{count}{_SCALARS[element]}"))
        if element == _STRING:
            return self.texts(count)
        return [self.value(element) for _ in range(count)]

    def metadata(self, num_keys: int) -> dict[str, Any]:
        return {self.text(): self.value(self.take("I")[0]) for _ in range(num_keys)}


def open_gguf(path: Path) -> Cursor:
    """A cursor behind the magic of a memory-mapped file.  Raises ConfigError if it is no GGUF or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(len(MAGIC))
            if head != MAGIC:
                raise ConfigError(f"{path}: is not a GGUF file (it begins with {head!r}, not {MAGIC!r})")
            return Cursor(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def read_counts(path: Path, cursor: Cursor) -> tuple[int, int]:
    """(number of tensors, number of keys), after the version has been checked."""
    version, num_tensors, num_keys = cursor.take("IQQ")
    if version not in VERSIONS:
        raise ConfigError(f"{path}: GGUF version {version} is not supported (valid: {VERSIONS[0]}, {VERSIONS[1]})")
    return num_tensors, num_keys


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of the file as plain Python values.  Raises ConfigError naming the file if it is no sound GGUF."""
    cursor = open_gguf(path)
    try:
        return cursor.metadata(read_counts(path, cursor)[1])
    except DAMAGE as error:
        raise ConfigError(f"{path}: is damaged or cut off: {error}") from error
    finally:
        cursor.data.close()
