"""What was seen of every request, and the figures made of it.  Times are in seconds until the report, which has ms.

Latencies count from the moment at which a request was *due*, so a generator or a server that falls behind shows.
TPOT is (end - first token) / (tokens - 1) and exists from two tokens on; the gap before a delta of n tokens counts as n
equal gaps for ITL.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...core.errors import ConfigError, nearest

PERCENTILES = (50, 90, 95, 99)
SLO_NAMES = ("ttft", "tpot", "e2e")


class Seen(msgspec.Struct):
    """One request as its client saw it.  ``error`` is the code of a refusal or failure, "" if there was none."""

    due: float
    kind: str
    sent: float = 0.0
    first: float | None = None
    ended: float = 0.0
    num_tokens: int = 0
    gaps: list[tuple[float, int]] = msgspec.field(default_factory=list)  # seconds, tokens
    last: float | None = None
    error: str = ""
    reason: str = ""

    def delta(self, now: float, count: int) -> None:
        """``count`` tokens have come."""
        if self.first is None:
            self.first = now
        elif self.last is not None and count:
            self.gaps.append((now - self.last, count))
        self.last = now
        self.num_tokens += count

    @property
    def good(self) -> bool:
        return not self.error

    def latency(self, name: str) -> float | None:
        """ttft, tpot or e2e in seconds; None if there is none."""
        if self.first is None:
            return None
        if name == "ttft":
            return self.first - self.due
        if name == "e2e":
            return self.ended - self.due
        return (self.ended - self.first) / (self.num_tokens - 1) if self.num_tokens > 1 else None


def parse_slo(words: Sequence[str]) -> dict[str, float]:
    """``["ttft:200", "tpot:50"]`` -> limits in ms.  Raises ConfigError."""
    limits: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition(":")
        if name not in SLO_NAMES:
            raise ConfigError(f"--slo {word!r}: unknown latency{nearest(name, SLO_NAMES)}")
        try:
            limits[name] = float(value)
        except ValueError as error:
            raise ConfigError(f"--slo {word!r}: expected {name}:MILLISECONDS") from error
    return limits


def summary(seen: Sequence[Seen], took_s: float, lags: Sequence[float], slo: Mapping[str, float]) -> dict[str, Any]:
    """The report.  ``lags``: by how much this program was late, in seconds, for every request."""
    plain = [one for one in seen if one.good and one.kind == "plain"]
    tokens = sum(one.num_tokens for one in seen)
    out: dict[str, Any] = {
        "requests": len(seen),
        "completed": sum(one.good for one in seen),
        "cancelled": sum(one.kind == "cancel" for one in seen),
        "slow_readers": sum(one.kind == "slow" for one in seen),
        "failures": dict(Counter(one.error for one in seen if one.error)),
        "duration_s": round(took_s, 3),
        "requests_per_s": _per_s(sum(one.good for one in seen), took_s),
        "output_tokens": tokens,
        "output_tokens_per_s": _per_s(tokens, took_s),
    }
    for name in SLO_NAMES:
        values = [value for one in plain if (value := one.latency(name)) is not None]
        out[f"{name}_ms"] = spread([(value, 1) for value in values])
    out["itl_ms"] = spread([(gap / count, count) for one in plain for gap, count in one.gaps])
    out["own_lag_ms"] = spread([(lag, 1) for lag in lags])
    if slo:
        kept = [one for one in plain if all(_within(one, name, limit) for name, limit in slo.items())]
        out["slo_ms"] = dict(slo)
        out["goodput_per_s"] = _per_s(len(kept), took_s)
        out["goodput_share"] = round(len(kept) / max(1, sum(one.kind == "plain" for one in seen)), 4)
    return out


def spread(weighted: Sequence[tuple[float, int]]) -> dict[str, float] | None:
    """Mean, percentiles and maximum of (seconds, weight), in ms; None without values."""
    if not weighted:
        return None
    ordered, total = sorted(weighted), sum(weight for _, weight in weighted)
    out = {"mean": sum(value * weight for value, weight in ordered) / total}
    for percent in PERCENTILES:
        rank, passed = math.ceil(total * percent / 100), 0
        for value, weight in ordered:
            passed += weight
            if passed >= rank:
                out[f"p{percent}"] = value
                break
    out["max"] = ordered[-1][0]
    return {name: round(value * 1e3, 3) for name, value in out.items()}


def _within(one: Seen, name: str, limit_ms: float) -> bool:
    value = one.latency(name)
    return value * 1e3 <= limit_ms if value is not None else name == "tpot"  # one token has no time between tokens


def _per_s(count: int, took_s: float) -> float:
    return round(count / took_s, 3) if took_s > 0 else 0.0
