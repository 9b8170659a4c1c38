"""Hugging Face folders: ``config.json`` and safetensors, in one file or in shards with an index."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...core.errors import ConfigError
from .checkpoint import check_tensors
from .config import LlamaConfig, as_ids
from .config_hf import from_hf

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16")


class FolderFiles:
    """The weights of a folder, memory-mapped; every shard the index names must be there (H-09).

    ``fields`` is its ``config.json``.  ``only_floats``: tensors of other types are refused by name.
    """

    def __init__(self, path: Path, only_floats: bool = True) -> None:
        self.path = path
        if not (path / "config.json").exists():
            what = "is empty" if not any(path.iterdir()) else "holds neither a config.json nor exactly one *.gguf file"
            raise ConfigError(f"{path}: {what}")
        self.fields = read_json(path / "config.json")
        self.files, promised = self._weight_files()
        self._where: dict[str, Any] = {}
        #: Tensor name -> shape.
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, str] = {}
        for file in self.files:
            handle = _open(file)
            for name in handle.keys():  # noqa: SIM118 -- the handle is not a mapping
                part = handle.get_slice(name)
                if only_floats and part.get_dtype() not in FLOATS:
                    raise ConfigError(
                        f"{file}: tensor {name!r} has type {part.get_dtype()}, supported are {', '.join(FLOATS)}"
                    )
                self._stored[name] = part.get_dtype()
                self.shapes[name], self._where[name] = tuple(part.get_shape()), handle
        #: How many tensors there are of each stored type.
        self.types = Counter(self._stored.values())
        if absent := sorted(set(promised) - set(self.shapes)):
            raise ConfigError(f"{path / INDEX}: names tensors that no shard holds: {', '.join(absent[:5])}")

    def read(self, name: str) -> torch.Tensor:
        """One tensor as stored."""
        tensor: torch.Tensor = self._where[name].get_tensor(name)
        return tensor

    matrix = read

    def stored(self, name: str) -> str:
        """What a tensor is stored as."""
        return self._stored[name]

    def _weight_files(self) -> tuple[tuple[Path, ...], dict[str, str]]:
        """Files with weights, and tensor -> shard as the index promises (empty without an index)."""
        if (self.path / INDEX).exists():
            promised = read_json(self.path / INDEX).get("weight_map")
            if not isinstance(promised, dict) or not promised:
                raise ConfigError(f"{self.path / INDEX}: key 'weight_map' is missing or empty")
            for name, shard in promised.items():
                if not isinstance(shard, str) or not shard or Path(shard).name != shard:
                    raise ConfigError(
                        f"{self.path / INDEX}: weight_map.{name} = {shard!r}: expected a file of this folder"
                    )
            files = tuple(self.path / shard for shard in sorted(set(promised.values())))
            if missing := [file.name for file in files if not file.exists()]:
                raise ConfigError(f"{self.path}: {INDEX} names shards that are not there: {', '.join(missing)}")
            return files, promised
        if (self.path / SINGLE).exists():
            return (self.path / SINGLE,), {}
        raise ConfigError(f"{self.path}: has a config.json but no weights: neither {SINGLE} nor {INDEX}")

    def end_token_ids(self) -> set[int]:
        """End ids of generation_config.json and of the tokenizer's ``eos_token``."""
        ends: set[int] = set()
        if (file := self.path / "generation_config.json").exists():
            ends |= set(as_ids(read_json(file).get("eos_token_id"), str(file)))
        named = self.path / "tokenizer_config.json"
        vocabulary = self.path / "tokenizer.json"
        if named.exists() and vocabulary.exists():
            token = read_json(named).get("eos_token")
            text = token.get("content") if isinstance(token, dict) else token
            tokenizer = read_json(vocabulary)
            try:
                added = {item["content"]: item["id"] for item in tokenizer.get("added_tokens") or ()}
                ids = tokenizer.get("model", {}).get("vocab") or {}
                found = added.get(text, ids.get(text) if isinstance(ids, dict) else None)
            except (AttributeError, KeyError, TypeError) as error:
                raise ConfigError(f"{vocabulary}: is not a tokenizer: {type(error).__name__}: {error}") from error
            ends |= set(as_ids(found, str(vocabulary)))
        return ends


class FolderCheckpoint(FolderFiles):
    """A folder of one of this package's families, every tensor accounted for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config: LlamaConfig = from_hf(self.fields, self.end_token_ids(), path.name, str(path / "config.json"))
        check_tensors(self.config, self.shapes, str(path))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.shapes)

    @property
    def needs_conversion(self) -> bool:
        return False

    @property
    def format(self) -> str:
        return "safetensors"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.  Raises ConfigError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file}: is not a complete safetensors file: {error}") from error
