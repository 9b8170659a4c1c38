"""Keys that may have one of a few values, stated in their type: a wrong one is answered with the nearest of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..core.errors import ConfigError, nearest

_type_info = functools.cache(msgspec.inspect.type_info)


def check_choices(kind: Any, tree: Mapping[str, Any], prefix: str, where: str) -> None:
    """Raises ConfigError for a value of ``tree`` that is none of those which the field of ``kind`` states.

    ``kind`` is a Struct or a dataclass; ``prefix`` stands before the keys in the message.
    """
    for key, value, valid in _stated(_type_info(kind), tree, prefix):
        if isinstance(value, tuple(map(type, valid))) and value not in valid:
            names = [str(choice) for choice in valid]
            hint = f"; did you mean {value}, without quotes?" if value in names else nearest(str(value), names)
            raise ConfigError(f"{where}: {key} = {value!r} is not supported{hint}")


def _stated(kind: Any, tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """(dotted key, value, values it may have) of every value that has such a list."""
    types = {field.name: field.type for field in getattr(kind, "fields", ())}
    for key, value in tree.items():
        if isinstance(expected := types.get(key), msgspec.inspect.LiteralType):
            yield prefix + key, value, expected.values
        elif isinstance(value, Mapping):
            yield from _stated(expected, value, f"{prefix}{key}.")
