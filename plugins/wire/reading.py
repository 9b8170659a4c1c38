"""What every parser of a client's words does: one JSON object, fields by name, values that must mean nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from ...core.errors import ClientError, nearest

MAX_SHOWN = 80  # characters of a peer's own words that an error repeats
MAX_NESTING = 64  # levels of lists and objects; what is repeated to the peer is encoded with less room on the stack

#: Fields of the one request schema that every API takes beside its own, under the same name.
COMMON_OPTIONS = frozenset({
    "cache_salt", "deadline_ms", "ignore_eos", "min_p", "min_tokens", "priority", "seed", "temperature", "tenant",
    "top_k", "top_p",
})  # fmt: skip
#: The same, of the APIs in OpenAI's manner.
OPENAI_OPTIONS = COMMON_OPTIONS | {
    "frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "stop_token_ids",
}  # fmt: skip

Check = Callable[[Any], bool]


def read_object(text: str | bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text``; ``what`` it is ("the body") begins the error.  Raises ClientError."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ClientError("invalid_json", f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ClientError("invalid_request", f"{what} must be a JSON object, not {kind_of(value)}")
    opening = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, opening)) > MAX_NESTING and _is_deep(value):  # type: ignore[arg-type]
        raise ClientError("invalid_json", f"{what} is nested more than {MAX_NESTING} levels deep")
    return value


def _is_deep(value: Any) -> bool:
    """Whether lists and objects stand in more than ``MAX_NESTING`` others."""
    level = [value]
    for _ in range(MAX_NESTING):
        children = (child for one in level for child in (one.values() if isinstance(one, dict) else one))
        level = [child for child in children if isinstance(child, dict | list)]
        if not level:
            return False
    return True


def check_fields(fields: Mapping[str, Any], known: Collection[str], must_be: Mapping[str, Check]) -> None:
    """Refuse by name what is not ``known``, and what ``must_be`` something else: nobody shall believe it was done.

    Raises ClientError ``unsupported_parameter``.
    """
    for name, value in fields.items():
        if (check := must_be.get(name)) is not None:
            if not check(value):
                raise ClientError("unsupported_parameter", f"{name} with this value is not offered here", name)
        elif name not in known:
            raise unknown_field(name, [*known, *must_be])


def unknown_field(name: str, known: Collection[str], where: str = "") -> ClientError:
    """A field that nobody knows; ``where`` it stands ("in cancel")."""
    shown = name[:MAX_SHOWN]
    place = f" {where}" if where else ""
    return ClientError("unsupported_parameter", f"unknown field {shown!r}{place}{nearest(shown, known)}", shown)


def typed(fields: Mapping[str, Any], name: str, kind: type, expected: str) -> Any:
    """``fields[name]``, of this type or None.  Raises ClientError."""
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise ClientError("invalid_request", f"{name} must be {expected}", name)
    return value


def kind_of(value: object) -> str:
    """What JSON calls it."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def is_empty(value: Any) -> bool:
    """Whether a field says nothing: clients send the empty values of what they don't use."""
    return value is None or value in ([], {}, "", 0, False)


def one_of(*values: Any) -> Check:
    """Absent, or one of these."""
    return lambda value: value is None or value in values


def is_flag(value: Any) -> bool:
    """Absent, or true or false."""
    return value is None or isinstance(value, bool)
