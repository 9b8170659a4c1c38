"""Converted weights are kept in the user's cache folder, so that only the first start pays for dequantising.

One safetensors file per (source files, converter version, dtype), written to a temporary name and renamed: two
processes may convert at once and either result is whole.  The next start maps it into memory.  A damaged file, or one
that does not hold exactly the expected tensors, is made again.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ..folders import cache_folder
from .checkpoint import Checkpoint
from .mapped import MappedTensors, checksum, write_tensors

#: From canonical tensor name to its values.
Read = Callable[[str], torch.Tensor]
Progress = Callable[[str], None]
#: Raise it whenever the same source file would convert to other numbers or names, or be laid out otherwise.
CONVERTER_VERSION = 2
MIB = 2**20


def cache_path(checkpoint: Checkpoint, dtype: torch.dtype, folder: Path | None = None) -> Path:
    """Where the conversion of ``checkpoint`` to ``dtype`` lies: keyed by path, size and change time of its files."""
    facts = [str(CONVERTER_VERSION), str(dtype)]
    for file in checkpoint.files:
        status = file.stat()
        facts += [str(file.resolve()), str(status.st_size), str(status.st_mtime_ns)]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
    name = str(dtype).removeprefix("torch.")
    return (folder or cache_folder()) / "weights" / f"{checkpoint.files[0].stem}-{name}-{key}.safetensors"


def load_weights(checkpoint: Checkpoint, dtype: torch.dtype, progress: Progress, folder: Path | None = None) -> Read:
    """A function from canonical tensor name to its values in ``dtype``.

    Files that are cheap to read are read directly.  The result may be a read-only view of a mapped file: whoever
    keeps a tensor packs or copies it, and may read its pages again.  A cache that cannot be written is not an error:
    the weights are then converted at every start.
    """
    types = ", ".join(f"{count} {kind}" for kind, count in sorted(checkpoint.types.items()))
    shapes, to = checkpoint.config.tensor_shapes(), str(dtype).removeprefix("torch.")
    stored = sum(file.stat().st_size for file in checkpoint.files) / MIB
    made = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize / MIB
    progress(f"weights: {len(checkpoint.names)} tensors ({types}), {stored:.0f} MiB in {len(checkpoint.files)} file(s)")
    if not checkpoint.needs_conversion:
        progress(f"weights read from the mapped files and cast to {to}, {made:.0f} MiB")
        return lambda name: checkpoint.read(name).to(dtype)
    path = cache_path(checkpoint, dtype, folder)
    mapped = _open(path, shapes)
    if mapped is None:
        progress(f"converting {checkpoint.format} weights to {to}, once")
        try:
            _convert(checkpoint, shapes, dtype, path, progress)
        except OSError as error:
            progress(f"the converted weights could not be kept in {path.parent}: {error}")
            return lambda name: checkpoint.read(name).to(dtype)
        mapped = _open(path, shapes)
        if mapped is None:
            raise OSError(f"{path}: was written and cannot be read back; is the disk failing?")
        progress(f"converted weights, {made:.0f} MiB, kept in {path}")
    else:
        progress(f"weights mapped from {path}, {made:.0f} MiB")
    return _giving_back(mapped)


def _giving_back(mapped: MappedTensors) -> Read:
    """Reads that give back what earlier ones touched."""

    def read(name: str) -> torch.Tensor:
        mapped.give_back()
        return mapped.read(name)

    return read


def _open(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> MappedTensors | None:
    """Map a cache file; None when it is absent, cut off, or holds anything but the expected tensors."""
    if not path.exists():
        return None
    try:
        mapped = MappedTensors(path)
        if mapped.shapes != dict(shapes):
            return None
        digest = hashlib.blake2b(digest_size=16)
        for name in shapes:
            digest.update(checksum(name, mapped.read(name)))
            mapped.give_back()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mapped if mapped.metadata.get("fingerprint") == digest.hexdigest() else None


def _convert(
    checkpoint: Checkpoint,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    path: Path,
    progress: Progress,
) -> None:
    """Write the cache file, one tensor in memory at a time.  Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, done = hashlib.blake2b(digest_size=16), 0

    def read(name: str) -> torch.Tensor:
        nonlocal done
        tensor = checkpoint.read(name).to(dtype).contiguous()
        digest.update(checksum(name, tensor))
        done += 1
        if done * 4 // len(shapes) != (done - 1) * 4 // len(shapes) and done < len(shapes):
            progress(f"converted {done} of {len(shapes)} tensors")
        return tensor

    made, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem + "-", suffix=".part")
    try:
        with os.fdopen(made, "wb") as file:
            write_tensors(file, shapes, dtype, read, digest.hexdigest)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
