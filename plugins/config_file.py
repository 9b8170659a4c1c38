"""``plugins.toml`` and ``--set`` -> a checked ``Config`` whose every value remembers its origin.

Layers, later wins: built-in defaults, the file, ``--set key=value``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..core.config import build
from ..core.errors import ConfigError
from .settings import Config


class LoadedConfig(msgspec.Struct, frozen=True):
    """``config`` and, for every dotted key, ``origin``: ``default``, the file's name, or ``--set``."""

    config: Config
    origin: dict[str, str]

    def describe(self) -> list[tuple[str, Any, str]]:
        """(key, value, origin) of every effective value, in the order of the sections."""
        flat = flatten(msgspec.to_builtins(self.config))
        return [(key, value, self.origin.get(key, "default")) for key, value in flat.items()]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``."""
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
    return out


def load(path: Path | None = None, overrides: Iterable[str] = ()) -> LoadedConfig:
    """Read ``path`` (None: defaults only), apply ``key=value`` overrides, check everything.  Raises ConfigError."""
    tree: dict[str, Any] = {}
    origin: dict[str, str] = {}
    if path is not None:
        try:
            tree = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not valid TOML: {error}") from error
        origin = dict.fromkeys(flatten(tree), path.name)
        build(Config, tree, str(path))
    for item in overrides:
        key, value = _override(tree, item)
        origin = {name: where for name, where in origin.items() if not name.startswith(key + ".")}
        origin |= dict.fromkeys(flatten({key: value}), "--set")
    return LoadedConfig(build(Config, tree, "--set" if overrides else str(path or "defaults")), origin)


def _override(tree: dict[str, Any], item: str) -> tuple[str, Any]:
    key, equals, text = item.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"--set {item!r}: expected key=value, for example scheduler.token_budget=256")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string
    node = tree
    *parents, leaf = key.split(".")
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {item!r}: {name!r} is not a table")
    node[leaf] = value
    return key, value
