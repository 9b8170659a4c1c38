"""Rotary positions: what a model file says about them, checked, and the angles that follow.

Five kinds are known: ``default``, ``linear``, ``dynamic``, ``yarn`` and ``llama3``; any other is refused by name.
``read_rope`` understands every spelling that model files use: ``rope_parameters`` (new) or ``rope_scaling`` (old) with
``rope_type`` or ``type``, and the base in that table or beside it (H-02, H-12).

``dynamic`` stretches the base with the length of the sequence.  Here a token is turned by the base that fits the
sequence up to itself, which is what a model that is fed token by token does.  So its key depends neither on the size
of the prompt's chunks nor on what else is in the step, and can be found again in a prefix cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...core.errors import ConfigError, nearest
from .fields import Fields

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_THETA = 10000.0  # the documented default of every family of this package
_ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}
#: Kind -> keys that mean something to it.
KINDS: dict[str, set[str]] = {
    "default": {"factor", "original_max_position_embeddings"},  # some files keep the table of a scaling that is off
    "linear": {"factor", "original_max_position_embeddings"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "yarn": {
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    },
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """``original``: positions the model was trained on, from which the scaling stretches.

    ``divisors``, one per pair of dimensions, replaces the formula of a kind: GGUF files store llama3 scaling so.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()


class Rotary:
    """Angles of one model's heads."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self.rope, self.head_dim = rope, head_dim
        self.frequencies = _frequencies(rope, head_dim)

    def cos_sin(self, positions: NDArray[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine for ``positions`` ``(num_tokens,)``: two float32 tensors ``[num_tokens, head_dim / 2]``."""
        at = torch.from_numpy(positions).float()[:, None]
        angles = at * self.frequencies
        rope = self.rope
        if rope.kind == "dynamic" and bool((beyond := at[:, 0] >= rope.original).any()):
            stretch = rope.factor * (at[beyond] + 1) / rope.original - (rope.factor - 1)
            base = rope.theta * stretch ** (self.head_dim / (self.head_dim - 2))
            angles[beyond] = at[beyond] / base ** _exponents(self.head_dim)
        return angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim


def _frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair of dimensions: ``[head_dim / 2]`` float32."""
    plain = 1.0 / (rope.theta ** _exponents(head_dim))
    if rope.divisors:
        return plain / torch.tensor(rope.divisors)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        turns = rope.original * plain / (2 * math.pi)  # over the original context
        smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        share = smooth.clamp(0, 1)  # 1: turns fast enough to stay as it is
        return (1 - share) * plain / rope.factor + share * plain
    if rope.kind == "yarn":
        low, high = (_yarn_dimension(turns, rope, head_dim) for turns in (rope.beta_fast, rope.beta_slow))
        if rope.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = (torch.arange(head_dim // 2) - low) / (high - low if high != low else 0.001)
        share = 1 - ramp.clamp(0, 1)
        return (1 - share) * plain / rope.factor + share * plain
    return plain


def _yarn_dimension(turns: float, rope: Rope, head_dim: int) -> float:
    """The dimension that turns so many times over the original context."""
    return head_dim * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def read_rope(values: Mapping[str, Any], max_positions: int, where: str) -> tuple[Rope, tuple[str, ...]]:
    """Of a ``config.json``: the rope, and notes for the log.  ``max_positions`` is its max_position_embeddings."""
    name = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    table = values.get(name) or {}
    if values.get("rope_parameters") and values.get("rope_scaling") not in (None, values["rope_parameters"]):
        raise ConfigError(f"{where}: rope_parameters and rope_scaling are both given and differ: remove one")
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: {name} = {table!r}: expected a table")
    kind = table.get("rope_type") or table.get("type") or "default"
    if kind not in KINDS:
        raise ConfigError(f"{where}: {name}.rope_type = {kind!r} is not supported{nearest(str(kind), KINDS)}")
    if unknown := sorted(set(table) - KINDS[kind] - _ALWAYS):
        raise ConfigError(
            f"{where}: {name}.{unknown[0]} = {table[unknown[0]]!r} means nothing to rope type {kind!r}"
            f"{nearest(unknown[0], KINDS[kind])}"
        )
    partial = table.get("partial_rotary_factor", values.get("partial_rotary_factor"))
    if partial not in (None, 1):
        raise ConfigError(f"{where}: partial_rotary_factor = {partial!r} is not supported (valid: 1.0)")
    theta, notes = _theta(values, table, name, where)
    get = Fields(table, where, name + ".")
    rope, more = _scaled(theta, kind, get, values.get("original_max_position_embeddings"), max_positions)
    check_rope(rope, where)
    return rope, (*notes, *more)


def _theta(values: Mapping[str, Any], table: Mapping[str, Any], name: str, where: str) -> tuple[float, tuple[str, ...]]:
    nested, beside = table.get("rope_theta"), values.get("rope_theta")
    if nested is not None and beside is not None and nested != beside:
        raise ConfigError(f"{where}: rope_theta = {beside!r} and {name}.rope_theta = {nested!r} differ: remove one")
    found = nested if nested is not None else beside
    if found is None:
        return DEFAULT_THETA, (f"rope_theta is missing: {DEFAULT_THETA:g} is used",)
    return Fields({"rope_theta": found}, where).number("rope_theta"), ()


def _scaled(theta: float, kind: str, get: Fields, beside: Any, max_positions: int) -> tuple[Rope, tuple[str, ...]]:
    if kind == "default":
        return Rope(theta), ()
    factor = get.number("factor")
    original, notes = max_positions, tuple[str, ...]()
    if kind in ("yarn", "llama3"):
        default = max_positions if beside is None else int(beside)
        original = get.count("original_max_position_embeddings", default)
        if beside is None and get.values.get("original_max_position_embeddings") is None:
            notes = (f"{kind}: original_max_position_embeddings is missing: {original} is used",)
    if kind == "llama3":
        low, high = get.number("low_freq_factor"), get.number("high_freq_factor")
        return Rope(theta, kind, factor, original, low_freq_factor=low, high_freq_factor=high), notes
    if kind != "yarn":
        return Rope(theta, kind, factor, original), notes
    return Rope(
        theta, kind, factor, original,
        beta_fast=get.number("beta_fast", 32.0),
        beta_slow=get.number("beta_slow", 1.0),
        attention_factor=_yarn_attention(get, factor),
        truncate=bool(get.values.get("truncate", True)),
    ), notes  # fmt: skip


def _yarn_attention(get: Fields, factor: float) -> float:
    """What cosine and sine are multiplied with, so that attention stays as sharp over the longer context."""
    if get.values.get("attention_factor") is not None:
        return get.number("attention_factor")
    scale, all_dim = get.number("mscale", 0.0), get.number("mscale_all_dim", 0.0)
    if scale and all_dim:
        return yarn_attention(factor, scale) / yarn_attention(factor, all_dim)
    return yarn_attention(factor)


def yarn_attention(factor: float, scale: float = 1.0) -> float:
    """The factor for attention that yarn suggests for a stretch of ``factor``."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def check_rope(rope: Rope, where: str) -> None:
    """Refuse constants that no angle can be made of.  Raises ConfigError."""
    if not rope.theta > 1:
        raise ConfigError(f"{where}: rope_theta = {rope.theta:g}: expected more than 1")
    if not rope.factor >= 1:
        raise ConfigError(f"{where}: rope factor = {rope.factor:g}: expected at least 1")
    if rope.kind != "default" and rope.original < 1:
        raise ConfigError(f"{where}: original_max_position_embeddings = {rope.original}: expected at least 1")
    if rope.kind == "llama3" and not 0 < rope.low_freq_factor < rope.high_freq_factor:
        raise ConfigError(
            f"{where}: low_freq_factor = {rope.low_freq_factor:g}, high_freq_factor = {rope.high_freq_factor:g}: "
            "expected the first to be above 0 and below the second"
        )


def position_limits(rope: Rope, max_positions: int) -> tuple[int, int]:
    """(positions to serve by default, most that may be asked for), from what the file states as ``max_positions``.

    yarn: the original length times the factor, whether the file states its length before or after scaling.
    linear, dynamic: the file does not say which it states; so by default that much, and times the factor if asked for.
    llama3: the stated length is the scaled one (H-04).
    """
    if rope.kind == "yarn":
        return (scaled := int(rope.original * rope.factor)), scaled
    if rope.kind in ("linear", "dynamic"):
        return max_positions, int(max_positions * rope.factor)
    return max_positions, max_positions
