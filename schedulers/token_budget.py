"""Decode first, prompts in chunks: no step is long, and one long prompt does not hold up the others.

Every running request that only needs its next token gets it.  What is left of the token budget goes to prompts, in
order of admission, each at most ``long_prefill_cap`` (or its equal share of the budget, if that is more) while
several want some.  With ``prefill_interval`` n, prompts are worked on in every n-th step only while anything decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.hookspecs import Register, hookimpl
from ..core.policy import PolicyContext, SchedulerView
from .keys.options import KeyedPolicy, Keys, NonNegInt, PosInt


@dataclass(frozen=True)
class Options(Keys):
    """Options of ``token_budget``."""

    long_prefill_cap: NonNegInt = 0  # most tokens of one prompt in a step while others wait; 0: budget / 4
    prefill_interval: PosInt = 1  # steps from one with prompt tokens to the next, while anything decodes


class TokenBudget(KeyedPolicy):
    """Arrival order, with the budget split between decoding and prompts."""

    claims = {"arrival_order": True}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        self._known: set[str] = set()  # rids that ran at the last call
        self._prefilled = -self.options.prefill_interval  # newest step with prompt tokens

    def split_budget(self, view: SchedulerView) -> Mapping[str, int] | None:
        decodes: dict[str, int] = {}
        prefills: list[str] = []
        rids: set[str] = set()
        for request in view.running:
            remaining, rid = request.num_remaining_tokens, request.rid
            rids.add(rid)
            if remaining > 1:
                prefills.append(rid)
            elif remaining:
                decodes[rid] = 1
        if not rids <= self._known:  # somebody was admitted in the newest step
            self._prefilled = view.step
        self._known = rids
        if decodes and view.step + 1 - self._prefilled < self.options.prefill_interval:
            return {**decodes, "*": 0}
        if prefills:
            self._prefilled = view.step + 1
        cap = self._cap(view, len(prefills) + min(view.num_waiting, view.max_running - view.num_running))
        return {**decodes, **dict.fromkeys(prefills, cap), "*": cap}

    def _cap(self, view: SchedulerView, num_prompts: int) -> int:
        budget = view.token_budget
        if num_prompts <= 1:
            return budget  # nobody to be kept waiting
        return max(self.options.long_prefill_cap or budget // 4, budget // num_prompts, 1)


@hookimpl
def register_schedulers(register: Register) -> None:
    register("token_budget", TokenBudget, Options)
