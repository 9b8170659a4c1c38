"""Typed look-ups in the metadata of a model file, whose errors name the key and the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.errors import ConfigError

_MOST = 2**48  # larger numbers, infinity and NaN are damage


class Fields:
    """A mapping of metadata; ``prefix`` goes before every key in errors.  A key that holds None counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values, self.where, self.prefix = values, where, prefix

    def number(self, key: str, default: float | None = None) -> float:
        """A number; ``default`` where the key is absent.  Raises ConfigError if there is neither."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"{self.where}: key {self.prefix + key!r} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where}: {self.prefix}{key} = {value!r}: expected a number")
        if not abs(value) < _MOST:  # nor NaN
            raise ConfigError(f"{self.where}: {self.prefix}{key} = {value!r}: expected a number that a model can have")
        return float(value)

    def count(self, key: str, default: int | None = None, most: int = _MOST) -> int:
        """A whole number up to ``most``."""
        value = self.number(key, default)
        if not value.is_integer():
            raise ConfigError(f"{self.where}: {self.prefix}{key} = {value}: expected a whole number")
        if value > most:
            raise ConfigError(f"{self.where}: {self.prefix}{key} = {int(value)}: expected at most {most}")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {self.prefix}{key} = {value!r}: expected true or false")
        return value
