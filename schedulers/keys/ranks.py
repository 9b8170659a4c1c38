"""Classes of requests: a policy says which rank a request has, the rest follows.  Rank 0 goes before rank 1.

Running requests are served by rank.  A waiting request displaces running work only if its rank is better by more than
``threshold``, only if that frees enough, and nobody is displaced more than ``max_preemptions`` times: equal ranks
never take turns in evicting each other, and work that was thrown away often enough is left to finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.policy import SchedulerView
from ...core.request import RequestView, Status
from .options import KeyedPolicy, Keys, NonNegInt
from .victims import victims


@dataclass(frozen=True)
class RankOptions(Keys):
    """Shared options of policies with ranks."""

    preempt: bool = True  # a waiting request may displace running work of a worse rank
    threshold: NonNegInt = 0  # displace only if the ranks differ by more than this
    max_preemptions: NonNegInt = 3  # who was preempted so often is not displaced again


class RankedPolicy(KeyedPolicy):
    """Base: override ``rank`` and, for another order among those who run, ``places``."""

    def rank(self, request: RequestView) -> int:
        """The class of the request, the smallest first."""
        raise NotImplementedError

    def places(self, running: Iterable[RequestView]) -> list[Any]:
        """Keys that order those who run, ties by admission."""
        return list(map(self.rank, running))

    def split_budget(self, view: SchedulerView) -> Mapping[str, int] | None:
        running, budget = view.running, view.token_budget
        if sum([request.num_remaining_tokens for request in running]) <= budget:
            return None  # enough for everybody: the order does not matter
        places = self.places(running)
        if len(set(places)) < 2:
            return None  # all alike: in order of admission
        caps = {running[index].rid: budget for index in sorted(range(len(places)), key=places.__getitem__)}
        caps["*"] = budget
        return caps

    def select_victims(self, view: SchedulerView, need_blocks: int, for_request: RequestView) -> Sequence[str]:
        mine, chosen = self.rank(for_request), list[str]()
        if for_request.status is Status.RUNNING:  # short of blocks: the worst goes, at the end it itself
            return [request.rid for request in self._worst_first(view) if self.rank(request) >= mine]
        if not self.options.preempt or max(map(self.rank, view.running), default=mine) - mine <= self.options.threshold:
            return ()
        for request in self._worst_first(view):
            if self.rank(request) - mine <= self.options.threshold:
                break
            if request.num_preemptions < self.options.max_preemptions:
                chosen.append(request.rid)
                need_blocks -= view.held_blocks(request)
                if need_blocks <= 0:
                    return chosen
        return ()  # all of them would not free enough: nobody is touched

    def _worst_first(self, view: SchedulerView) -> list[RequestView]:
        order = victims(self.options.victims, view.running, self.context.rng)
        order.sort(key=self.rank, reverse=True)  # stable: within a rank the chosen order stays
        return order
