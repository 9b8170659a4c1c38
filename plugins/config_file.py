"""``plugins.toml`` and ``--set`` -> a checked ``Config`` whose every value remembers its origin.

Layers, later wins: built-in defaults, the file, ``--set key=value``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..core.config import build
from ..core.errors import ConfigError
from .choices import check_choices
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


def read_toml(path: Path) -> dict[str, Any]:
    """The tree in ``path``.  Raises ConfigError naming the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors put a mark before the first byte
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def load(path: Path | None = None, overrides: Iterable[str] = ()) -> LoadedConfig:
    """Read ``path`` (None: defaults only), apply ``key=value`` overrides, check everything.  Raises ConfigError."""
    tree: dict[str, Any] = {}
    origin: dict[str, str] = {}
    if path is not None:
        tree = read_toml(path)
        origin = dict.fromkeys(flatten(tree), path.name)
        checked(tree, str(path))
    for item in overrides:
        key, value = _override(tree, item)
        origin = {name: where for name, where in origin.items() if not name.startswith(key + ".")}
        origin |= dict.fromkeys(flatten({key: value}), "--set")
    return LoadedConfig(checked(tree, "--set" if overrides else str(path or "defaults")), origin)


def checked(tree: Mapping[str, Any], where: str) -> Config:
    """A plain tree as a ``Config``; ``where`` names the source in errors.  Raises ConfigError."""
    check_choices(Config, tree, "", where)
    return build(Config, tree, where)


def toml(value: Any) -> str:
    """A configured value as ``plugins.toml`` spells it."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Mapping():
            inner = ", ".join(f"{_toml_key(key)} = {toml(item)}" for key, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case list() | tuple():
            return f"[{', '.join(toml(item) for item in value)}]"
        case _:
            return str(value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _override(tree: dict[str, Any], item: str) -> tuple[str, Any]:
    text_key, equals, text = item.partition("=")
    if not equals or not text_key.strip():
        raise ConfigError(f"--set {item!r}: expected key=value, for example scheduler.token_budget=256")
    *parents, leaf = _path_of(text_key, item)
    value = _value(text)
    node = tree
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"--set {item!r}: {name!r} is not a table")
    node[leaf] = value
    return ".".join([*parents, leaf]), value


def _path_of(text: str, item: str) -> list[str]:
    """The names of a key that is written as in TOML: ``scheduler.options.weights."team.a"``."""
    try:
        node: Any = tomllib.loads(f"{text.strip()} = 0")
    except tomllib.TOMLDecodeError:
        node = {}
    names = []
    while isinstance(node, dict) and len(node) == 1:
        ((name, node),) = node.items()
        names.append(name)
    if node != 0:
        raise ConfigError(f"--set {item!r}: {text.strip()!r} is not a key, such as scheduler.token_budget")
    return names


def _value(text: str) -> Any:
    """As in TOML; a bare word is a string."""
    try:
        parsed = tomllib.loads(f"value = {text.strip()}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    return parsed["value"] if parsed.keys() == {"value"} else text.strip()
