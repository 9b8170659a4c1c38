"""The sampling plan of a step, and the table of request parameters it is cut from: host side, no logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.errors import EngineFault
from ..core.messages import GrantedRow, SamplingParams, Started
from ..core.policy import SampleOutput
from .philox import uniforms

#: A temperature below this is greedy: nothing but the best token would survive the division anyway.
GREEDY_TEMPERATURE = 1e-5

#: States of a row whose best logit is not finite.
NAN, POSITIVE, NEGATIVE = 2, 3, 4
_REASONS = {
    NAN: "the model's logits for this token hold NaN",
    POSITIVE: "the model's logits for this token hold +inf",
    NEGATIVE: "no token is possible: every logit is -inf or banned",
}

_FIELDS = (
    ("temperature", np.float32),
    ("top_k", np.int32),
    ("top_p", np.float32),
    ("min_p", np.float32),
    ("greedy", np.bool_),
    ("seed", np.uint64),
    ("num_prompt_tokens", np.int64),
    ("min_tokens", np.int64),
)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingPlan:
    """What to draw in one step: every array has one entry per sampling row, in row order.

    ``temperature`` float32, 0 where greedy; ``top_k`` int32, 0 where off (never above the vocabulary); ``top_p`` and
    ``min_p`` float32; ``uniform`` float64 in [0, 1), 0 where greedy; ``greedy`` bool.  ``banned_rows`` and
    ``banned_ids`` (int64) are pairs: that id may not be drawn in that row.

    ``standard_run`` is the array half that draws from this plan by the arithmetic of ``stages``, all cuts in their
    usual order; None where another does.  Whoever has the logits and is told to call just that may draw instead, and
    says with ``why`` what ails a row that cannot be drawn from.
    """

    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    top_p: npt.NDArray[np.float32]
    min_p: npt.NDArray[np.float32]
    uniform: npt.NDArray[np.float64]
    greedy: npt.NDArray[np.bool_]
    banned_rows: npt.NDArray[np.int64]
    banned_ids: npt.NDArray[np.int64]
    standard_run: Callable[[Any, Any], SampleOutput] | None = None
    #: Every row takes its best token: known once for all who draw from this plan.
    best_only: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "best_only", bool(self.greedy.all()))

    def __len__(self) -> int:
        return len(self.temperature)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingPlan) and all(
            np.array_equal(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    @staticmethod
    def why(state: int) -> str:
        """What makes a row unusable whose best logit is ``NAN``, ``POSITIVE`` or ``NEGATIVE``."""
        return _REASONS[state]

    @property
    def has_bans(self) -> bool:
        return len(self.banned_ids) > 0


class ParamTable:
    """Parameters of every running request as columns, so that a step's plan is a few array look-ups, not a loop.

    A request owns one slot from ``put`` to ``drop``; slots are used again.
    """

    def __init__(self, vocab_size: int, end_token_ids: tuple[int, ...]) -> None:
        self.vocab_size, self.end_token_ids = vocab_size, end_token_ids
        self.slots: dict[str, int] = {}
        self._bans: dict[int, npt.NDArray[np.int64]] = {}
        self._free: list[int] = []
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(0, kind) for name, kind in _FIELDS}
        self._capacity = 0
        self._steady: tuple[list[int], SamplingPlan] | None = None  # a plan that stays as it is, and its slots

    def put(self, started: Started) -> None:
        """Remember the parameters of ``started``; of a rid that is known (it was preempted) they replace the old."""
        params, self._steady = started.sampling, None
        slot = self.slots.get(started.rid)
        if slot is None:
            slot = self.slots[started.rid] = self._take()
        greedy = is_greedy(params)
        values = (
            0.0 if greedy else min(params.temperature, float(np.finfo(np.float32).max)),
            params.top_k if 0 < params.top_k < self.vocab_size else 0,
            params.top_p,
            params.min_p,
            greedy,
            params.seed,
            started.num_prompt_tokens,
            min(params.min_tokens, 2**62),
        )
        for (name, _), value in zip(_FIELDS, values, strict=True):
            self._columns[name][slot] = value
        end_ids = () if params.ignore_eos else self.end_token_ids
        ids = sorted({*end_ids, *params.stop_token_ids})
        if params.min_tokens > 0 and ids:
            self._bans[slot] = np.array(ids, np.int64)
        else:
            self._bans.pop(slot, None)

    def drop(self, rid: str) -> None:
        """Forget ``rid``; a rid that never started is ignored."""
        self._steady = None
        slot = self.slots.pop(rid, None)
        if slot is not None:
            self._bans.pop(slot, None)
            self._free.append(slot)

    def plan(
        self, rows: tuple[GrantedRow, ...], standard_run: Callable[[Any, Any], SampleOutput] | None = None
    ) -> SamplingPlan:
        """The plan of the rows that sample; ``standard_run`` goes into it.

        Raises EngineFault for a rid that never started."""
        sampling = [row for row in rows if row.samples]
        try:
            owned = [self.slots[row.rid] for row in sampling]
        except KeyError as error:
            raise EngineFault(f"row of {error.args[0]!r}, which was never started or is already released") from error
        if self._steady is not None and self._steady[0] == owned and self._steady[1].standard_run == standard_run:
            return self._steady[1]
        slots = np.array(owned, np.int64)
        positions = np.array([row.start + row.count for row in sampling], np.int64)
        column = {name: values[slots] for name, values in self._columns.items()}
        uniform = np.zeros(len(slots))
        drawn = np.flatnonzero(~column["greedy"])
        if len(drawn):
            uniform[drawn] = uniforms(column["seed"][drawn], positions[drawn])
        held = np.flatnonzero(positions - column["num_prompt_tokens"] < column["min_tokens"])
        bans = [(row, ids) for row in held.tolist() if (ids := self._bans.get(int(slots[row]))) is not None]
        plan = SamplingPlan(
            temperature=column["temperature"],
            top_k=column["top_k"],
            top_p=column["top_p"],
            min_p=column["min_p"],
            uniform=uniform,
            greedy=column["greedy"],
            banned_rows=np.repeat(np.array([row for row, _ in bans], np.int64), [len(ids) for _, ids in bans]),
            banned_ids=np.concatenate([np.zeros(0, np.int64), *(ids for _, ids in bans)]),
            standard_run=standard_run,
        )
        if not len(drawn) and not bans:  # nothing in it depends on the positions, and never will while these run
            self._steady = owned, plan
        return plan

    def check(self) -> None:
        """Raise AssertionError unless every slot is either free or owned by one request."""
        owned = list(self.slots.values())
        assert sorted(owned + self._free) == list(range(self._capacity)), "a slot is lost or has two owners"
        assert set(self._bans) <= set(owned), "banned ids of a request that is gone"

    def _take(self) -> int:
        if not self._free:
            grown = max(64, 2 * self._capacity)
            self._free.extend(range(grown - 1, self._capacity - 1, -1))
            self._columns = {name: np.resize(values, grown) for name, values in self._columns.items()}
            self._capacity = grown
        return self._free.pop()


def is_greedy(params: SamplingParams) -> bool:
    """Whether only the best token can be drawn, ties going to the lowest id."""
    return params.temperature < GREEDY_TEMPERATURE or params.top_k == 1 or params.top_p == 0
