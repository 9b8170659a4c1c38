"""Options that somebody wrote into a file, checked against the signature of the function that they are for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from ...core.errors import ConfigError, nearest


def checked(
    function: Callable[..., Any], options: Mapping[str, Any], where: str, own: Collection[str]
) -> dict[str, Any]:
    """``options`` as the annotations of ``function`` have them.  Raises ConfigError for an unknown name, another type,
    and a number that is below 0 or not finite (unless it is the default).  ``own`` parameters are the caller's."""
    parameters = inspect.signature(function, eval_str=True).parameters
    known = [name for name in parameters if name not in own]
    for name in options:
        if name not in known:
            raise ConfigError(f"{where}: unknown option {name!r}{nearest(name, known)}")
    return {
        name: value
        if value == parameters[name].default
        else typed(value, parameters[name].annotation, f"{where}: {name}")
        for name, value in options.items()
    }


def typed(value: Any, kind: Any, where: str) -> Any:
    """``value`` as a ``kind``.  Raises ConfigError."""
    words = get_args(kind) if get_origin(kind) is Literal else ()
    if words and value not in words:
        raise ConfigError(f"{where} = {value!r}: unknown{nearest(str(value), words)}")
    try:
        made = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        rule = str(error).partition(" - at ")[0]
        raise ConfigError(f"{where} = {value!r}: {rule[:1].lower()}{rule[1:]}") from error
    if isinstance(made, int | float) and not 0 <= made < math.inf:
        raise ConfigError(f"{where} = {value!r}: expected a number from 0")
    return made
