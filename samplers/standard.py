"""The standard sampler: temperature, top-k, top-p and min-p, seeded, with end ids held back by ``min_tokens``.

Actor half (``handle``): a grant becomes a ``SamplingPlan``, with one Philox uniform per row from the request's seed and
the token's absolute position.  Array half (``run``): the token is the first whose cumulative probability, by descending
logit and then ascending id, exceeds that uniform.  A row depends on its own logits, parameters, seed and position only.

Order: ban (``min_tokens``), divide by the temperature, top-k, top-p, min-p, renormalise, draw.

What happens at the edges, and where other engines differ:

| case | here | vLLM | Hugging Face |
| --- | --- | --- | --- |
| order of min-p | after top-k and top-p | before them | after them |
| temperature below 1e-5 | greedy | greedy | 0 refused, greedy by ``do_sample`` |
| tiny temperature above it | as given, exact | raised to 0.01 | as given |
| largest temperature | any finite value | 2 | any |
| greedy ties | lowest id | not specified | not specified |
| top_k 0, -1, at least the vocabulary | off | off | 0 off, -1 refused |
| ties at the k-th logit | exactly k stay, lower ids first | all tied stay | all tied stay |
| top-p after top-k | share of what top-k left | the same | the same |
| mass before a token equals p exactly | token dropped, p is reached | dropped | dropped |
| top_p 0 | greedy | refused | greedy |
| top_p 1, min_p 0 | off, same bits as not given | off | off |
| min_p 1 | the best token and its equals | the same | the same |

``min_tokens`` holds back the model's end ids and the request's ``stop_token_ids`` for exactly that many output tokens;
with ``ignore_eos`` end ids are ordinary tokens and only ``stop_token_ids`` are held back.  It may exceed
``max_tokens``: length wins.  A row with a NaN, with +inf or with nothing but -inf fails by name and its neighbours do
not notice.
Parameters are rounded to float32; probabilities are exact to about ``2**-46`` of the best token's (see ``stages``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import ClientError, EngineFault, nearest
from ..core.hookspecs import Register, hookimpl
from ..core.messages import Message, SamplingParams, StepGrant, StepLaunch
from ..core.policy import SampleOutput, SamplerContext
from .order import on_cpu
from .plan import NAN, NEGATIVE, POSITIVE, ParamTable, SamplingPlan
from .stages import ORDER, Cut, Prefix, RowParams, TopK, argmax, ban, chunks, draw

#: Leading tokens looked at first; the few rows that need more look at the whole vocabulary.
_WIDTH = 2048
#: The largest top_k for which looking at that many tokens beats weighing the whole row.
_NARROW_TOP_K = 1023

_SETTLED, _OPEN = 0, 1


class StandardSampler:
    """See the module's docstring; the contract is ``core.policy.Sampler``."""

    api_level = 1
    parameters = frozenset(
        {
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "max_tokens",
            "min_tokens",
            "stop_token_ids",
            "ignore_eos",
        }
    )
    #: The cuts in the order they are made.
    order: tuple[Cut, ...] = ORDER

    def __init__(self, options: Any, context: SamplerContext) -> None:
        self.context = context
        self._table = ParamTable(context.vocab_size, context.end_token_ids)
        # A sampler that is derived from this one and draws otherwise has to be asked.
        standard = self.order == ORDER and type(self).run is StandardSampler.run
        self._standard_run = self.run if standard else None

    # --- actor half ---

    def validate(self, params: SamplingParams) -> None:
        """Raise ClientError naming the field, the value and the valid range."""
        for name in params.extra:
            raise ClientError(
                "unsupported_parameter", f"unknown parameter {name!r}{nearest(name, self.parameters)}", name
            )
        _check_number("temperature", params.temperature, math.inf)
        _check_number("top_p", params.top_p, 1.0)
        _check_number("min_p", params.min_p, 1.0)
        _check_integer("top_k", params.top_k, -1, None, " (0, -1 or the vocabulary's size switch it off)")
        _check_integer("seed", params.seed, 0, 2**64 - 1)
        _check_integer("max_tokens", params.max_tokens, 0, None)
        _check_integer("min_tokens", params.min_tokens, 0, None)
        for token_id in params.stop_token_ids:
            _check_integer("stop_token_ids", token_id, 0, self.context.vocab_size - 1, ", the vocabulary's last id")

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        """``StepGrant`` -> ``StepLaunch``; nothing for a grant that gives the executor nothing to do or to forget."""
        if not isinstance(message, StepGrant):
            return []
        for rid in message.released:
            self._table.drop(rid)
        for started in message.started:
            self._table.put(started)
        if not (message.rows or message.padding or message.released or message.copies):
            return []
        return [
            StepLaunch(
                step=message.step,
                rows=message.rows,
                sampling=self._table.plan(message.rows, self._standard_run),
                released=message.released,
                copies=message.copies,
                padding=message.padding,
            )
        ]

    def check(self) -> None:
        """Raise AssertionError if the books of the requests' parameters do not balance."""
        self._table.check()

    # --- array half ---

    @torch.inference_mode()
    def run(self, logits: Tensor, plan: SamplingPlan) -> SampleOutput:
        """Draw one id per row of ``logits``, torch float32 ``[len(plan), vocab]`` on any device; may overwrite them.

        Any thread; one transfer to the host, unless a row needs more than its leading tokens.  Rows without a usable
        logit are listed in ``failed`` and do not touch the others.  Raises EngineFault for a wrong shape or dtype.
        """
        shape = (len(plan), self.context.vocab_size)
        if tuple(logits.shape) != shape or logits.dtype != torch.float32:
            raise EngineFault(f"logits are {logits.dtype} {list(logits.shape)}, expected torch.float32 {list(shape)}")
        if len(plan) == 0:
            return SampleOutput([], [])
        if plan.has_bans:
            ban(logits, _to(logits, plan.banned_rows), _to(logits, plan.banned_ids))
        if plan.best_only and on_cpu(logits):  # most steps: tensor operations on a few numbers would cost more
            found = logits.numpy()
            best = found.argmax(-1).tolist()
            if all(map(math.isfinite, map(found.item, range(len(best)), best))):
                return SampleOutput(best, [])
        ids, status = [0] * len(plan), [_OPEN] * len(plan)

        def book(rows: list[int], parts: list[Tensor]) -> None:
            for row, token_id, state in zip(rows, *torch.cat(parts, 1).tolist(), strict=True):
                ids[row], status[row] = token_id, state

        narrow, wide = self._groups(plan)
        greedy = np.flatnonzero(plan.greedy)
        groups = [(narrow, _width(plan.top_k[narrow]), False), (wide, _WIDTH, True)]
        parts = [_greedy(_rows(logits, greedy))] if len(greedy) else []
        parts += [self._draw(logits, plan, rows, width, total) for rows, width, total in groups if len(rows)]
        book(np.concatenate((greedy, narrow, wide)).tolist(), parts)
        rows = np.flatnonzero(np.array(status) == _OPEN)
        for part in chunks(logits, len(rows)):
            book(rows[part].tolist(), [self._draw(logits, plan, rows[part], shape[1], False)])
        failed = [(row, plan.why(state)) for row, state in enumerate(status) if state != _SETTLED]
        return SampleOutput(ids, failed)

    def _groups(self, plan: SamplingPlan) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Rows that draw, split by whether a small top-k comes first, so that nothing beyond it needs weighing."""
        small = (plan.top_k > 0) & (plan.top_k <= _NARROW_TOP_K) & isinstance(self.order[0], TopK)
        return np.flatnonzero(small & ~plan.greedy), np.flatnonzero(~small & ~plan.greedy)

    def _draw(
        self, logits: Tensor, plan: SamplingPlan, rows: npt.NDArray[np.intp], width: int, with_total: bool
    ) -> Tensor:
        """Ids and states, int64 ``[2, rows]``, as far as ``width`` leading tokens can tell."""
        columns = (plan.temperature, plan.top_p, plan.min_p, plan.uniform, plan.top_k)
        packed = _to(logits, np.stack([column[rows].astype(np.float64) for column in columns]))  # one transfer
        temperature, top_p, min_p, uniform, top_k = packed
        params = RowParams(temperature, top_k.long(), top_p, min_p, uniform)
        prefix = Prefix(_rows(logits, rows), width, temperature, with_total=with_total)
        for stage in self.order:
            stage.cut(prefix, params)
        ids, settled = draw(prefix, uniform)
        return torch.stack((ids, _states(prefix.best, torch.where(settled, _SETTLED, _OPEN))))


def _greedy(logits: Tensor) -> Tensor:
    ids = argmax(logits)
    return torch.stack((ids, _states(logits.gather(1, ids[:, None])[:, 0], torch.zeros_like(ids))))


def _states(best: Tensor, usable: Tensor) -> Tensor:
    """``usable`` where the best logit is finite, else the state that says why the row fails."""
    unusable = torch.where(best.isnan(), NAN, torch.where(best > 0, POSITIVE, NEGATIVE))
    return torch.where(best.isfinite(), usable, unusable)


def _rows(logits: Tensor, rows: npt.NDArray[np.intp]) -> Tensor:
    return logits if len(rows) == len(logits) else logits[_to(logits, rows)]


def _to(logits: Tensor, array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).to(logits.device)


def _width(top_k: npt.NDArray[np.int32]) -> int:
    """Leading tokens to look at for these values of top-k: one more than k, so that a clean edge shows as such."""
    return 1 << int(top_k.max()).bit_length() if len(top_k) else 0


def _check_number(name: str, value: Any, highest: float) -> None:
    top = "any finite number" if highest == math.inf else f"{highest:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= highest or value == math.inf:
        raise ClientError("invalid_request", f"{name} = {value!r}: must be a number from 0 to {top}", name)


def _check_integer(name: str, value: Any, lowest: int, highest: int | None, note: str = "") -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value < lowest
        or (highest is not None and value > highest)
    ):
        valid = f"from {lowest} to {highest}" if highest is not None else f"of at least {lowest}"
        raise ClientError("invalid_request", f"{name} = {value!r}: must be an integer {valid}{note}", name)


@hookimpl
def register_samplers(register: Register) -> None:
    """Offer the standard sampler."""
    register("standard", StandardSampler, None)
