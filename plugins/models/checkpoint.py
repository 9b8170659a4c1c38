"""What every kind of model file looks like to the rest: a configuration, and tensors by canonical name.

``open_checkpoint`` decides by what lies at the path.  Everything that can be refused is refused here, before any
weight is read: a wrong place, an unknown architecture, a missing, surplus or misshapen tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from .blocks import Matrix
    from .config import LlamaConfig
    from .foreign import ForeignFolder


class Checkpoint(Protocol):
    """An opened model file or folder.  Tensor names are those of Hugging Face folders."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> LlamaConfig: ...
    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the weights."""

    @property
    def names(self) -> frozenset[str]:
        """Every tensor the files hold."""

    @property
    def format(self) -> str:
        """What the weights are stored as, for people and for the name of the cache."""

    @property
    def types(self) -> Mapping[str, int]:
        """How many tensors there are of each stored type."""

    @property
    def needs_conversion(self) -> bool:
        """Whether reading is expensive enough to keep the result."""

    def read(self, name: str) -> torch.Tensor:
        """One tensor, rows first, float32 or as stored.  May be a read-only view of the file."""

    def stored(self, name: str) -> str:
        """What one tensor is stored as, for instance ``BF16`` or ``Q4_1``."""

    def matrix(self, name: str) -> Matrix:
        """One tensor without loss of what it is stored as: blocks stay blocks."""


def find_model(path: str | Path) -> Path:
    """The file or folder that ``model.path`` means: "" is the embedded default, a hub id its copy on this machine,
    fetched if need be.  Raises ConfigError."""
    from .embedded import default_model_path
    from .hub import fetch, is_hub_id

    if str(path) == "":
        return default_model_path()
    place = Path(path).expanduser()
    if place.exists():
        return place
    if is_hub_id(str(path)):
        return fetch(str(path))
    raise ConfigError(f"model.path = {str(path)!r}: there is no such file or folder")


def open_model(path: str | Path) -> Checkpoint | ForeignFolder:
    """Open what ``path`` means, whether this package or transformers runs it.  Raises ConfigError."""
    from .foreign import ForeignFolder, is_foreign

    place = find_model(path)
    return ForeignFolder(place) if is_foreign(place) else open_checkpoint(place)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open what ``path`` means, a GGUF file or a Hugging Face folder of one of this package's families.

    Raises ConfigError.
    """
    from .gguf import GgufCheckpoint
    from .hf import FolderCheckpoint

    place = find_model(path)
    if place.is_dir():
        found = sorted(place.glob("*.gguf"))
        if len(found) == 1 and not (place / "config.json").exists():
            return GgufCheckpoint(found[0])
        return FolderCheckpoint(place)
    return GgufCheckpoint(place)


def check_tensors(config: LlamaConfig, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Every expected tensor is there in its shape, and nothing else is.  Raises ConfigError naming the tensor.

    A tied model may repeat its output weights (H-01); whether they agree is checked where they are read.
    """
    expected = config.tensor_shapes()
    if missing := sorted(set(expected) - set(found)):
        raise ConfigError(f"{where}: {len(missing)} tensor(s) missing: {_listed(missing)}")
    optional = {"lm_head.weight": expected["model.embed_tokens.weight"]} if config.tied else {}
    if surplus := sorted(set(found) - set(expected) - set(optional)):
        raise ConfigError(f"{where}: {len(surplus)} tensor(s) that this model has no place for: {_listed(surplus)}")
    for name, shape in found.items():
        if shape != (want := (expected | optional)[name]):
            raise ConfigError(f"{where}: tensor {name!r} has shape {list(shape)}, expected {list(want)}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
