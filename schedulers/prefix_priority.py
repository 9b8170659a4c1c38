"""Longest cached prefix first, so that requests which share a prefix run while it is in the KV cache.

The first ``look_ahead`` waiting requests by arrival are ordered by the length of their cached prefix.  Who would
compute the same tokens as a prompt that is being computed right now is held back until it can use the result.  A
request that ``max_passes`` later arrivals have passed is the next: that bounds the wait of a prompt nobody shares
(one that does not fit is passed by up to ``scheduler.max_bypass`` more).  Without a prefix cache this is first come,
first served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ..core.hookspecs import Register, hookimpl
from ..core.policy import Event, PolicyContext, SchedulerView
from ..core.request import RequestView
from .keys.options import KeyedPolicy, Keys, NonNegInt, PosInt


@dataclass(frozen=True)
class Options(Keys):
    """Options of ``prefix_priority``."""

    look_ahead: PosInt = 128  # waiting requests that are ordered by prefix in a step; the others keep their order
    shared_tokens: PosInt = 32  # prompts that agree in so many further tokens compute the same
    max_passes: NonNegInt = 32  # later arrivals that may start before a request


class PrefixPriority(KeyedPolicy):
    """Orders waiting requests by cached prefix, with a bound on being passed over."""

    claims = {"bounded_bypass": 32}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        self._passes: dict[str, int] = {}  # rid -> later arrivals that started before it
        self._looked: dict[str, int] = {}  # rid -> arrival number of those ordered at the last call
        self._hits = False  # a cached prefix was seen once: there is a prefix cache

    def order_waiting(self, view: SchedulerView) -> Iterator[RequestView]:
        waiting = iter(view.waiting)
        window = list(islice(waiting, self.options.look_ahead))
        self._looked = {request.rid: request.seq for request in window}
        cached = {request.rid: view.cached_prefix_tokens(request) for request in window}
        self._hits = self._hits or any(cached.values())
        computing = self._prompts_in_progress(view) if self._hits else []
        pending = {request.rid: request for request in window}
        gone: list[int] = []  # arrival numbers handed out in this pass
        for request in sorted(window, key=lambda one: (one.num_preemptions == 0, -cached[one.rid], one.seq)):
            while pending and self._passed_enough(oldest := next(iter(pending.values())), gone):
                yield pending.pop(oldest.rid)
            if request.rid not in pending or (self._hits and self._repeats(request, cached[request.rid], computing)):
                continue
            computing.append(request.prompt_ids)
            gone.append(request.seq)
            yield pending.pop(request.rid)
        yield from waiting

    def _prompts_in_progress(self, view: SchedulerView) -> list[tuple[int, ...]]:
        return [request.prompt_ids for request in view.running if request.num_remaining_tokens > 1]

    def _repeats(self, request: RequestView, cached: int, computing: Iterable[tuple[int, ...]]) -> bool:
        """It would compute tokens that the cache will hold as soon as one of ``computing`` is done."""
        prompt, stop = request.prompt_ids, cached + self.options.shared_tokens
        return len(prompt) > stop and any(prompt[:stop] == other[:stop] for other in computing)

    def _passed_enough(self, request: RequestView, gone: Iterable[int]) -> bool:
        passes = self._passes.get(request.rid, 0) + sum(seq > request.seq for seq in gone)
        return passes >= self.options.max_passes  # type: ignore[no-any-return]

    def on_event(self, event: Event) -> None:
        if event.kind in ("started", "finished"):
            rid, seq = event.request.rid, event.request.seq
            self._passes.pop(rid, None)
            if self._looked.pop(rid, None) is not None and event.kind == "started":
                for other in (other for other, older in self._looked.items() if older < seq):
                    self._passes[other] = self._passes.get(other, 0) + 1


@hookimpl
def register_schedulers(register: Register) -> None:
    register("prefix_priority", PrefixPriority, Options)
