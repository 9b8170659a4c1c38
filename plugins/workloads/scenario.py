"""A scenario: rows, the KV memory they get, the engine's limits, and what is measured, all declared up front."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from ...core.errors import ConfigError, nearest
from ..traces.canonical import TraceRow, check_rows
from ..traces.options import checked, typed

Size = Literal["tiny", "full"]
SIZES = ("tiny", "full")
_FROM_ONE = {"block_size", "kv_tokens", "max_output"}
NAMES = tuple(f"S{number}" for number in range(1, 11))


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one class of requests, in seconds; 0: none.  ``deadline_s`` after its arrival a request is given up:
    policies see it, and what has not ended by then is a miss."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    e2e_s: float = 0.0
    deadline_s: float = 0.0


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """A metric that must not get worse than the baseline by more than ``tolerance`` (a share)."""

    metric: str
    tolerance: float = 0.05


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic and everything that belongs to it.

    Metrics are names of ``metrics.py``, such as ``ttft_mean`` or ``ttft_p99@rare`` (the class ``rare`` of
    ``TraceRow.slo`` only).  ``primary`` decides; its first entry is the one for a verdict.  ``scheduler`` holds limits
    of the engine (keys of ``[scheduler]``), the same for every arm.  ``max_output``: the ``max_tokens`` that policies
    see of every request, while true lengths are hidden.  ``rate_per_s``: mean arrivals, 0 if all come at once.
    """

    name: str
    title: str
    size: str
    seed: int
    rows: tuple[TraceRow, ...]
    kv_tokens: int
    max_output: int
    primary: tuple[str, ...]
    guards: tuple[Guard, ...]
    rate_per_s: float
    block_size: int = 16
    scheduler: dict[str, Any] = {}
    slo: dict[str, Slo] = {}
    notes: str = ""  # the trap: what would mislead a reader of the result

    def __post_init__(self) -> None:
        check_rows(self.rows, self.name)

    @property
    def closed_loop(self) -> bool:
        """Some requests wait for others to end."""
        return any(row.parents for row in self.rows)

    @property
    def num_blocks(self) -> int:
        """KV blocks of ``block_size`` tokens."""
        return max(1, self.kv_tokens // self.block_size)


def scenario(name: str, size: str = "tiny", seed: int = 0, **overrides: Any) -> Scenario:
    """The scenario ``S1`` to ``S10``.  ``overrides`` are parameters of its generator (``num_requests``, ``rate_per_s``
    and its own) or fields of :class:`Scenario`, put in last.

    Raises ConfigError for an unknown name, size or override, naming the nearest.
    """
    make = maker(name)
    if size not in SIZES:
        raise ConfigError(f"scenario {name}: size = {size!r}{nearest(size, SIZES)}")
    where = f"scenario {name}"
    own = [known for known in inspect.signature(make).parameters if known not in ("size", "seed")]
    fields = {field.name: field.type for field in msgspec.structs.fields(Scenario)}
    fields = {key: kind for key, kind in fields.items() if key not in ("name", "size", "seed", *own)}
    for key in overrides:
        if key not in own and key not in fields:
            raise ConfigError(f"{where}: unknown parameter {key!r}{nearest(key, [*own, *fields])}")
    given = checked(make, {key: value for key, value in overrides.items() if key in own}, where, ("size", "seed"))
    put = {key: typed(overrides[key], kind, f"{where}: {key}") for key, kind in fields.items() if key in overrides}
    for key in _FROM_ONE & put.keys():
        if put[key] < 1:
            raise ConfigError(f"{where}: {key} = {put[key]!r}: expected a number from 1")
    try:
        return msgspec.structs.replace(make(size, seed, **given), **put)
    except (ArithmeticError, ValueError, IndexError) as error:  # of parameters that make sense one by one only
        raise ConfigError(f"{where}: cannot be drawn with {overrides}: {error}") from error


def maker(name: str) -> Callable[..., Scenario]:
    """The generator behind a name."""
    if name not in NAMES:
        raise ConfigError(f"scenario {name!r}: there is no such scenario{nearest(name, NAMES)}")
    found: Callable[..., Scenario] = importlib.import_module(f"..{name.lower()}", __name__).make
    return found


def from_trace(
    rows: tuple[TraceRow, ...], kv_tokens: int, max_output: int, name: str = "trace", **fields: Any
) -> Scenario:
    """A scenario of recorded rows.  ``fields`` are those of :class:`Scenario`."""
    span = max(row.arrival_s for row in rows) if rows else 0.0
    facts: Mapping[str, Any] = {
        "title": name,
        "size": "full",
        "seed": 0,
        "primary": ("ttft_mean",),
        "guards": (Guard(metric="throughput"),),
        "rate_per_s": len(rows) / span if span else 0.0,
        **fields,
    }
    return Scenario(name=name, rows=rows, kv_tokens=kv_tokens, max_output=max_output, **facts)


def scale_arrivals(rows: tuple[TraceRow, ...], rate: float) -> tuple[TraceRow, ...]:
    """The same rows at ``rate`` requests (or sessions) per second: the times of all that have no parent are stretched
    so that the mean gap between them is ``1 / rate``.  Those that come together at the very first moment count as one
    (a backlog).  Delays after a parent stay: they are people and tools.

    Infinite: all at once.  Raises ConfigError for a rate that is not above 0.
    """
    if not rate > 0:
        raise ConfigError(f"rate = {rate!r}: expected requests per second above 0")
    times = [row.arrival_s for row in rows if not row.parents]
    first = min(times, default=0.0)
    later = [at - first for at in times if at > first]
    factor = len(later) / rate / max(later) if later else 0.0
    return tuple(msgspec.structs.replace(row, arrival_s=max(0.0, row.arrival_s - first) * factor) for row in rows)
