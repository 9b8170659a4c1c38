"""Reads the key-value part of a GGUF file: a few megabytes at its front, none of the tensors."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError

#: GGUF value type -> struct code of the fixed-size ones.
_FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of the file as plain Python values.  Raises ConfigError naming the file if it is no sound GGUF."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (struct.error, ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{path}: not a sound GGUF file: {error}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def read(self) -> dict[str, Any]:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with the letters GGUF")
        self.at = 4
        version, _, num_keys = self._unpack("IQQ")
        if version not in (2, 3):
            raise ValueError(f"version {version}, expected 2 or 3")
        return {self._string(): self._value(self._unpack("I")[0]) for _ in range(num_keys)}

    def _unpack(self, codes: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + codes, self.data, self.at)
        self.at += struct.calcsize("<" + codes)
        return values

    def _string(self) -> str:
        (size,) = self._unpack("Q")
        if size > len(self.data) - self.at:
            raise ValueError(f"a string of {size} bytes at byte {self.at} ends behind the file")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(_FIXED[kind])[0]
        element, count = self._unpack("IQ")
        if count > len(self.data) - self.at:
            raise ValueError(f"an array of {count} values at byte {self.at} ends behind the file")
        if element in _FIXED:
            return list(self._unpack(f"{count}{_FIXED[element]}"))
        return [self._value(element) for _ in range(count)]
