"""The one request schema of every entry path: a plain mapping -> ``GenerateRequest``, or a refusal that says why.

Types, NaN and shapes are checked here; the *ranges* of sampling parameters belong to the configured sampler, prompt ids
are checked against the vocabulary by the text edge, and lengths against the context by the host.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import msgspec

from ..core.errors import ClientError, nearest
from ..core.messages import SamplingParams

#: No vocabulary is larger: ids travel as signed 32-bit integers.
MAX_TOKEN_ID = 2**31 - 1
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_NAME_CHARS = 256
MAX_LEASE_S = 3600.0
#: Seeds drawn for requests without one stay exact in JSON readers that hold numbers as doubles.
SEED_BITS = 53


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One checked request: exactly one of ``prompt``, ``messages`` (role and content each) and ``token_ids`` is set.

    ``deadline_ms`` counts from reception.  ``warm`` computes the prompt's KV and generates nothing; ``lease_s`` keeps
    the prompt in the prefix cache for that many seconds.  ``extra`` holds parameters that only some samplers know.
    """

    prompt: str | None = None
    messages: tuple[dict[str, str], ...] | None = None
    token_ids: tuple[int, ...] | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    return_token_ids: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    tenant: str = "default"
    deadline_ms: float | None = None
    cache_salt: str = ""
    warm: bool = False
    lease_s: float = 0.0
    extra: dict[str, Any] = {}


def parse(
    fields: Mapping[str, Any], sampler_parameters: Collection[str] = (), *, forks: bool = False
) -> GenerateRequest:
    """Check a decoded JSON object.  ``sampler_parameters`` are further names that the configured sampler understands;
    a request that ``forks`` another has no prompt of its own.

    Raises ClientError: ``unsupported_parameter`` for an unknown name, ``invalid_request`` for everything else.
    """
    checked: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _CHECKS:
            if value is not None or name not in _NULLABLE:
                checked[name] = _CHECKS[name](name, value)
        elif name in _EXTRA_CHECKS:
            extra[name] = _EXTRA_CHECKS[name](name, value)
        elif name in sampler_parameters:
            extra[name] = value
        else:
            known = {*_CHECKS, *sampler_parameters}
            hint = nearest(str(name)[:MAX_NAME_CHARS], known)
            raise ClientError("unsupported_parameter", f"unknown field {_show(name)}{hint}", str(name)[:MAX_NAME_CHARS])
    given = [name for name in _INPUTS if name in checked]
    if forks and given:
        raise ClientError("invalid_request", f"{given[0]}: a fork goes on from its parent's text", given[0])
    if len(given) != 1 and not forks:
        got = "got " + " and ".join(given) if given else "got none of them"
        raise ClientError("invalid_request", f"give exactly one of {', '.join(_INPUTS)}; {got}", (given or _INPUTS)[-1])
    request = GenerateRequest(**checked, extra=extra)
    if request.min_tokens > request.max_tokens:
        _refuse("min_tokens", request.min_tokens, f"at most max_tokens = {request.max_tokens}")
    return request


def to_sampling(request: GenerateRequest, seed: int) -> SamplingParams:
    """The sampling part of a request, with the seed that is really used."""
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=seed,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        extra=request.extra,
    )


def draw_seed() -> int:
    """A seed for a request that names none: written down with it, so that the run can be replayed."""
    return secrets.randbits(SEED_BITS)


def _show(value: Any) -> str:
    """A short, safe rendering of any JSON value, without walking large ones."""
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return json.dumps(value[:60] + ("..." if len(value) > 60 else ""), ensure_ascii=False)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "an integer of more than 60 digits"
    return json.dumps(value) if value is None or isinstance(value, (bool, int, float)) else type(value).__name__


def _refuse(param: str, value: Any, expected: str) -> NoReturn:
    raise ClientError("invalid_request", f"{param} = {_show(value)}: expected {expected}", param)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        _refuse(name, value, "a string")
    if not value:
        _refuse(name, value, "at least one character")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        _refuse(name, ascii(value[:40]), "Unicode text without lone surrogates")
    return value


def _name(least: int) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= MAX_NAME_CHARS:
            _refuse(name, value, f"a string of {least} to {MAX_NAME_CHARS} characters")
        return _text(name, value) if value else value

    return check


def _integer(least: int | None = None, why: str = "") -> Callable[[str, Any], int]:
    expected = ("an integer" if least is None else f"an integer of at least {least}") + why

    def check(name: str, value: Any) -> int:
        if type(value) is not int or value.bit_length() > 64 or (least is not None and value < least):
            _refuse(name, value, expected)
        return value

    return check


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float):
        _refuse(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse(name, value, "a finite number")
    return number


def _duration(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not _number(name, value) > 0:
        _refuse(name, value, "a number of milliseconds above 0")
    return float(value)


def _lease(name: str, value: Any) -> float:
    if not 0 <= _number(name, value) <= MAX_LEASE_S:
        _refuse(name, value, f"0 to {MAX_LEASE_S:g} seconds")
    return float(value)


def _boolean(name: str, value: Any) -> bool:
    if type(value) is not bool:
        _refuse(name, value, "true or false")
    return value


def _ids(least: int) -> Callable[[str, Any], tuple[int, ...]]:
    def check(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, (list, tuple)):
            _refuse(name, value, "a list of token ids")
        if len(value) < least:
            _refuse(name, value, "at least one token id")
        for position, item in enumerate(value):
            if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
                _refuse(f"{name}[{position}]", item, "a token id: an integer from 0 up to the vocabulary size")
        return tuple(value)

    return check


def _stop(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        _refuse(name, value, "a string or a list of strings")
    if len(value) > MAX_STOPS:
        _refuse(name, value, f"at most {MAX_STOPS} stop strings")
    for position, item in enumerate(value):
        where = name if len(value) == 1 else f"{name}[{position}]"
        if not isinstance(item, str) or not 1 <= len(item) <= MAX_STOP_CHARS:
            _refuse(where, item, f"a string of 1 to {MAX_STOP_CHARS} characters")
    return tuple(value)


def _messages(name: str, value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, (list, tuple)) or not value:
        _refuse(name, value, "a list of at least one message")
    out = []
    for position, message in enumerate(value):
        where = f"{name}[{position}]"
        if not isinstance(message, Mapping):
            _refuse(where, message, "an object with role and content")
        for key in message:
            if key not in ("role", "content"):
                hint = nearest(str(key)[:MAX_NAME_CHARS], ("role", "content"))
                raise ClientError("unsupported_parameter", f"{where}: unknown key {_show(key)}{hint}", where)
        for key in ("role", "content"):
            if key not in message:
                raise ClientError("invalid_request", f"{where}: {key} is missing", f"{where}.{key}")
            if not isinstance(message[key], str):
                _refuse(f"{where}.{key}", message[key], "a string")
        content = message["content"] and _text(f"{where}.content", message["content"])
        out.append({"role": _text(f"{where}.role", message["role"]), "content": content})
    return tuple(out)


_INPUTS = ("prompt", "messages", "token_ids")
#: Fields for which an explicit null means the same as leaving them out.
_NULLABLE = frozenset({"seed", "stop", "deadline_ms"})
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "prompt": _text,
    "messages": _messages,
    "token_ids": _ids(1),
    "max_tokens": _integer(1, " (a generation without tokens is not offered)"),
    "min_tokens": _integer(0),
    "temperature": _number,
    "top_k": _integer(),
    "top_p": _number,
    "min_p": _number,
    "seed": _integer(),
    "stop": _stop,
    "stop_token_ids": _ids(0),
    "ignore_eos": _boolean,
    "return_token_ids": _boolean,
    "skip_special_tokens": _boolean,
    "priority": _integer(),
    "tenant": _name(1),
    "deadline_ms": _duration,
    "cache_salt": _name(0),
    "warm": _boolean,
    "lease_s": _lease,
}
#: Well-known parameters that a sampler may or may not offer: typed here, refused by name by a sampler without them.
_EXTRA_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "repetition_penalty": _number,
    "presence_penalty": _number,
    "frequency_penalty": _number,
}
