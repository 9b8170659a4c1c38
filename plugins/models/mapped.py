"""A safetensors file as views of a memory map whose pages can be given back while loading goes on.

A page that has been read counts as memory of the process until it is given back, so a reader that never does has the
weights twice at its peak: once in the map and once as the backend packs them.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

#: How a type of numbers is called in files.
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
_BLANK = "0" * 32


class MappedTensors:
    """Tensors of ``path`` by name.  Raises OSError or ValueError if it is not a whole safetensors file."""

    def __init__(self, path: Path) -> None:
        with path.open(
            "rb"
        ) as file:  # a private map: torch has no read-only tensors, and what it wrote would stay here
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if len(self._map) < 8:
            raise ValueError("no header")
        (size,) = struct.unpack_from("<Q", self._map)
        header = json.loads(self._map[8 : 8 + size])
        #: What the writer noted beside the tensors.
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        self._places = {
            name: (DTYPES[entry["dtype"]], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0])
            for name, entry in header.items()
        }
        for dtype, shape, begin in self._places.values():
            if begin + math.prod(shape) * dtype.itemsize > len(self._map) or begin % dtype.itemsize:
                raise ValueError("cut off, or not aligned")
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)  # one storage: neighbours can become one view
        self.shapes = {name: shape for name, (_, shape, _) in self._places.items()}

    def read(self, name: str) -> torch.Tensor:
        """A view of one tensor.  It must not be written to."""
        dtype, shape, begin = self._places[name]
        return self._bytes[begin : begin + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def give_back(self) -> None:
        """Let go of the pages read so far; a view that is used later reads them again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def checksum(name: str, tensor: torch.Tensor) -> bytes:
    """Of a tensor's name and bytes: a flipped bit changes it.  About 0.1 s per GiB."""
    raw = tensor.contiguous().view(torch.uint8).flatten().numpy()
    cut = raw.size // 8 * 8
    total = int(np.add.reduce(raw[:cut].view(np.uint64)))
    return f"{name}:{total}:".encode() + raw[cut:].tobytes()


def write_tensors(
    file: BinaryIO,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    read: Callable[[str], torch.Tensor],
    fingerprint: Callable[[], str],
) -> None:
    """Write every tensor of ``shapes``, one in memory at a time.  ``fingerprint`` is asked for when all are written
    and goes into the metadata; it has 32 characters."""
    header: dict[str, object] = {"__metadata__": {"fingerprint": _BLANK}}
    at = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    file.write(struct.pack("<Q", len(text)) + text)
    for name in shapes:
        file.write(read(name).contiguous().view(torch.uint8).flatten().numpy().data)
    file.seek(8 + text.index(_BLANK.encode()))
    file.write(fingerprint().encode())
