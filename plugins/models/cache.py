"""Converted weights are kept in the user's cache folder, so that only the first start pays for dequantising.

One safetensors file per (source files, converter version, dtype), written to a temporary name and renamed: two
processes may convert at once and either result is whole.  The next start maps it into memory.  A damaged file, or one
that does not hold exactly the expected tensors, is made again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .checkpoint import Checkpoint

#: From canonical tensor name to its values.
Read = Callable[[str], torch.Tensor]
#: Raise it whenever the same source file would convert to other numbers or names.
CONVERTER_VERSION = 1


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/mainspring`` or ``~/.cache/mainspring``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mainspring"


def cache_path(checkpoint: Checkpoint, dtype: torch.dtype, folder: Path | None = None) -> Path:
    """Where the conversion of ``checkpoint`` to ``dtype`` lies: keyed by path, size and change time of its files."""
    facts = [str(CONVERTER_VERSION), str(dtype)]
    for file in checkpoint.files:
        status = file.stat()
        facts += [str(file.resolve()), str(status.st_size), str(status.st_mtime_ns)]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:24]
    name = str(dtype).removeprefix("torch.")
    return (folder or cache_folder()) / "weights" / f"{checkpoint.files[0].stem}-{name}-{key}.safetensors"


def load_weights(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Callable[[str], None],
    folder: Path | None = None,
) -> Read:
    """A function from canonical tensor name to its values in ``dtype``.

    Files that are cheap to read are read directly.  The result may be a read-only view of a mapped file: whoever
    keeps a tensor packs or copies it.  A cache that cannot be written is not an error: the weights are then
    converted at every start.
    """
    if not checkpoint.needs_conversion:
        return lambda name: checkpoint.read(name).to(dtype)
    path = cache_path(checkpoint, dtype, folder)
    shapes = checkpoint.config.tensor_shapes()
    if (mapped := _open(path, shapes)) is not None:
        progress(f"weights mapped from {path}")
        return mapped
    progress(f"converting {checkpoint.format} weights to {str(dtype).removeprefix('torch.')}, once")
    tensors = {name: checkpoint.read(name).to(dtype).contiguous() for name in shapes}
    try:
        _write(path, tensors)
    except OSError as error:
        progress(f"the converted weights could not be kept in {path.parent}: {error}")
        return tensors.__getitem__
    del tensors
    mapped = _open(path, shapes)
    if mapped is None:
        raise OSError(f"{path}: was written and cannot be read back; is the disk failing?")
    return mapped


def _open(path: Path, shapes: dict[str, tuple[int, ...]]) -> Read | None:
    """Map a cache file; None when it is absent, cut off, or holds anything but the expected tensors."""
    if not path.exists():
        return None
    try:
        handle: Any = safe_open(path, framework="pt")
        metadata = handle.metadata() or {}
        found = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118
        if found != shapes or metadata.get("fingerprint") != _fingerprint(handle.get_tensor, shapes):
            return None
    except (SafetensorError, OSError, ValueError):
        return None
    read: Read = handle.get_tensor
    return read


def _fingerprint(read: Read, shapes: dict[str, tuple[int, ...]]) -> str:
    """A digest of every tensor's bytes: finds a flipped bit in about 0.1 s per GiB read."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(shapes):
        raw = read(name).contiguous().view(torch.uint8).flatten().numpy()
        cut = raw.size // 8 * 8
        total = int(np.add.reduce(raw[:cut].view(np.uint64)))
        digest.update(f"{name}:{total}:".encode() + raw[cut:].tobytes())
    return digest.hexdigest()


def _write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem + "-", suffix=".part")
    os.close(made)
    try:
        fingerprint = _fingerprint(tensors.__getitem__, {name: tuple(t.shape) for name, t in tensors.items()})
        save_file(tensors, temporary, metadata={"fingerprint": fingerprint})
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
