"""The array half's arithmetic: exact integer masses over tokens in order of (descending logit, ascending id).

**Why integers.**  A token's weight is ``round(2**S * exp((logit - best) / temperature))`` as int64, S chosen so that a
whole vocabulary of best tokens still fits.  Integer sums are exact in any order, so a total, a cumulative sum and hence
the drawn id are the same bits whatever the batch, the number of threads, the device's scan algorithm or the short cut
taken.  Weights below ``2**-(S + 1)`` of the best count as zero; with a vocabulary of 49152, S is 46.

**Why prefixes.**  Top-k, top-p and min-p each keep a prefix of that order, so their state is one number per row, the
mass kept.  All of it can be read off the leading few tokens (``Prefix``); a row whose answer lies beyond them, or
depends on how a tie at their edge is broken, is reported as not settled and tried again with more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .order import leading, on_cpu

#: Elements handled at once when weighing whole rows: cache-sized on a CPU, bounded memory on a device.
_CPU_CHUNK, _DEVICE_CHUNK = 2**17, 2**25


@dataclass(slots=True)
class RowParams:
    """Parameters of a group of rows on the logits' device: ``(rows,)`` float64, but ``top_k`` int64, 0 for off."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    uniform: Tensor


def scale_bits(vocab_size: int) -> int:
    """S above: the sum of ``vocab_size`` weights of ``2**S`` stays below ``2**62``."""
    return 62 - vocab_size.bit_length()


def weigh(logits: Tensor, best: Tensor, temperature: Tensor, bits: int) -> Tensor:
    """Integer weights of ``logits`` ``[rows, n]``, ``best`` ``[rows]`` float64 being worth ``2**bits``: int64."""
    scaled = (logits - best[:, None]).div_(temperature[:, None])  # float64, never positive: nothing can overflow
    return scaled.exp_().mul_(2.0**bits).round_().long()


def chunks(logits: Tensor, num_rows: int) -> list[slice]:
    """``num_rows`` in portions, such that working on whole rows of ``logits`` needs little memory at a time."""
    step = max(1, (_CPU_CHUNK if on_cpu(logits) else _DEVICE_CHUNK) // logits.shape[1])
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def total_mass(logits: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """Sum of the weights of whole rows ``[rows, vocab]``: int64 ``[rows]``."""
    bits = scale_bits(logits.shape[1])
    parts = chunks(logits, logits.shape[0])
    return torch.cat([weigh(logits[part], best[part], temperature[part], bits).sum(-1) for part in parts])


class Prefix:
    """The leading ``width`` tokens of each row, sorted, and the mass that the cuts have left so far.

    ``mass`` int64 ``[rows]`` starts as the whole row's (``total``) or, without it, as the prefix's own; ``known`` turns
    false in rows where a cut lies beyond the prefix.  Rows whose best logit is not finite hold garbage, within bounds.
    """

    def __init__(self, logits: Tensor, width: int, temperature: Tensor, *, with_total: bool) -> None:
        num_rows, vocab_size = logits.shape
        self.width = min(width, vocab_size)
        self.whole = self.width == vocab_size
        self.bits = scale_bits(vocab_size)
        values, self.ids = leading(logits, self.width)
        if self.whole:
            certain = torch.full((num_rows,), vocab_size, device=logits.device)
        else:  # Equals of the last value may stand outside, so which of them belong to the prefix is chance.
            certain = (values > values[:, -1:]).sum(-1)
        self.certain = certain
        self.best = values[:, 0].double()
        self.weights = weigh(values, self.best, temperature, self.bits)
        self.cumulative = self.weights.cumsum(-1)
        self.mass = self.cumulative[:, -1]
        if with_total and not self.whole:
            self.mass = total_mass(logits, self.best, temperature)
        self.known = torch.ones(num_rows, dtype=torch.bool, device=logits.device)

    def at(self, index: Tensor) -> Tensor:
        """Cumulative mass up to and including place ``index`` (clamped to the prefix)."""
        return self.cumulative.gather(1, index.clamp(0, self.width - 1)[:, None])[:, 0]

    def find(self, mass: Tensor, *, beyond: bool) -> Tensor:
        """First place whose cumulative mass reaches ``mass`` (or exceeds it: ``beyond``); ``width`` if none does."""
        return torch.searchsorted(self.cumulative, mass[:, None], right=beyond)[:, 0]

    def keep(self, rows: Tensor, mass: Tensor, inside: Tensor) -> None:
        """In ``rows`` at most ``mass`` stays; where not ``inside`` the prefix was too short to tell."""
        self.mass = torch.where(rows, torch.minimum(self.mass, mass), self.mass)
        self.known &= inside | ~rows | self.whole


class Cut(Protocol):
    """A stage that keeps a prefix of the order; it narrows ``prefix`` by ``keep``, each row by its own parameters."""

    def cut(self, prefix: Prefix, params: RowParams) -> None: ...


def nobody(rows: Tensor) -> bool:
    """Whether no row is meant, where that is cheap to know: to ask a device is to wait for it."""
    return on_cpu(rows) and not rows.numpy().any()


class TopK:
    """The k best by rank: exactly k, ties to the lower id."""

    def cut(self, prefix: Prefix, params: RowParams) -> None:
        rows = params.top_k > 0
        if nobody(rows):
            return
        prefix.keep(rows, prefix.at(params.top_k - 1), params.top_k <= prefix.width)


class TopP:
    """The fewest best tokens whose share of the mass kept so far reaches p: the crossing one stays, one at least."""

    def cut(self, prefix: Prefix, params: RowParams) -> None:
        rows = params.top_p < 1
        if nobody(rows):
            return
        goal = (prefix.mass.double() * params.top_p).ceil_().long().clamp_(min=1)
        place = prefix.find(torch.minimum(goal, prefix.mass), beyond=False)
        prefix.keep(rows, prefix.at(place), place < prefix.width)


class MinP:
    """Tokens at least ``min_p`` times as likely as the best."""

    def cut(self, prefix: Prefix, params: RowParams) -> None:
        rows = params.min_p > 0
        if nobody(rows):
            return
        floor = (params.min_p * 2.0**prefix.bits).ceil_().long()
        count = (prefix.weights >= floor[:, None]).sum(-1)
        mass = prefix.at(count - 1)
        # Every leading token passes: more may outside, unless an earlier cut has already dropped those.
        prefix.keep(rows, mass, (count < prefix.width) | (prefix.mass <= mass))


#: The order of the stages after the ban of single ids and the division by the temperature; then comes the draw.
ORDER: tuple[Cut, ...] = (TopK(), TopP(), MinP())


def draw(prefix: Prefix, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The first token whose cumulative share of the kept mass exceeds ``uniform``: ids and settled, ``[rows]``."""
    goal = (prefix.mass.double() * uniform).long()
    place = prefix.find(torch.minimum(goal, prefix.mass - 1), beyond=True)
    ids = prefix.ids.gather(1, place.clamp(max=prefix.width - 1)[:, None])[:, 0]
    return ids, prefix.known & (place < prefix.certain)


def argmax(logits: Tensor) -> Tensor:
    """Lowest id of each row's maximum, int64 ``[rows]``; a NaN counts as the maximum."""
    if on_cpu(logits):
        return torch.from_numpy(
            logits.numpy().argmax(-1)
        )  # NumPy promises the first occurrence, torch no particular one
    best = logits.amax(-1, keepdim=True)
    ids = torch.arange(logits.shape[1], device=logits.device)
    hit = (logits == best) | logits.isnan()
    return torch.where(hit, ids, logits.shape[1] - 1).amin(-1)


def ban(logits: Tensor, rows: Tensor, ids: Tensor) -> None:
    """Make ``ids`` impossible in ``rows`` (pairs), in place; a NaN stays, so that it is noticed."""
    values = logits[rows, ids]
    logits[rows, ids] = torch.where(values.isnan(), values, -torch.inf)
