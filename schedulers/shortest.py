"""Short work first, in three ways to say what is short.

``prefill``: fewest prompt tokens that are not in the KV cache.  ``remaining``: fewest tokens to go, prompt and
predicted output together; outputs are learned from finished requests of the same tenant and prompt size.  ``hrrn``:
highest ratio of time waited to work, so that long requests get their turn in the end; the other two can keep them
waiting for ever and are meant to be composed with ``ageing``.  Preempted requests go before all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ..core.hookspecs import Register, hookimpl
from ..core.policy import Event, PolicyContext, SchedulerView
from ..core.request import RequestView
from .keys.options import KeyedPolicy, Keys, PosInt
from .keys.order import smallest_first

FADE = 0.9  # share that the learned mean keeps when another request finishes


@dataclass(frozen=True)
class Options(Keys):
    """Options of ``shortest``."""

    mode: Literal["prefill", "remaining", "hrrn"] = "prefill"
    look_ahead: PosInt = 1024  # prefill and hrrn look at so many waiting requests in every step


class Shortest(KeyedPolicy):
    """Orders waiting requests by length; who runs, runs on."""

    claims = {"shortest_first": True, "work_conserving": True}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        self._learned: dict[tuple[str, int], float] = {}  # (tenant, bits of prompt length) -> mean output tokens

    def waiting_key(self, request: RequestView, now: float) -> Any:
        work = request.num_tokens
        if self.options.mode == "remaining":
            work += max(1, self.predicted_output(request) - request.num_output_tokens)
        return (request.num_preemptions == 0, 0 if self.options.mode == "hrrn" else work)

    def predicted_output(self, request: RequestView) -> int:
        """Tokens, at most ``max_tokens``, which is also the guess while nothing like it has finished."""
        learned = self._learned.get(self._kind(request), request.max_tokens)
        return min(request.max_tokens, round(learned))

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView] | None:
        if self.options.mode == "remaining":
            return None

        def key(request: RequestView) -> Any:
            uncached = request.num_tokens - view.cached_prefix_tokens(request)
            if self.options.mode == "prefill":
                return (request.num_preemptions == 0, uncached)
            ratio = (view.now - request.arrival) / max(1, uncached)
            return (request.num_preemptions == 0, uncached > 0, -ratio, uncached)

        return smallest_first(view.waiting, key, self.options.look_ahead)

    def on_event(self, event: Event) -> None:
        if event.kind == "finished" and (length := event.request.num_output_tokens):
            kind = self._kind(event.request)
            self._learned[kind] = FADE * self._learned.get(kind, length) + (1 - FADE) * length
            if len(self._learned) > 4096:  # many tenants came once
                self._learned.pop(next(iter(self._learned)))

    def _kind(self, request: RequestView) -> tuple[str, int]:
        return request.tenant, request.num_prompt_tokens.bit_length()

    def export_state(self) -> dict[str, Any]:
        return {"learned": [[*kind, mean] for kind, mean in self._learned.items()]}

    def import_state(self, policy: str, state: Any) -> None:
        """What was learned survives a change of options."""
        if policy == "shortest":
            self._learned = {(tenant, bits): mean for tenant, bits, mean in state["learned"]}


@hookimpl
def register_schedulers(register: Register) -> None:
    register("shortest", Shortest, Options)
