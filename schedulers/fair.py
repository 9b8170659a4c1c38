"""Fair shares by tenant: a counter of service received for each, the smallest admitted first.

Service counts prompt tokens when a request first starts and output tokens as they come, each with its weight, divided
by the tenant's own weight.  A tenant that comes back from idle is lifted to the smallest counter of those who wait,
or of the last one who did: it cannot save up credit by staying away.  ``lift = false`` is least-counter-first, which
gives that credit.  While two tenants both have requests waiting, their counters differ by at most
``2 * max(input_weight * longest prompt, output_weight * tokens of a full batch)``, however long it goes on.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from ..core.hookspecs import Register, hookimpl
from ..core.policy import Event, PolicyContext
from ..core.request import RequestView
from .keys.options import KeyedPolicy, Keys, NonNegFloat, PosFloat


@dataclass(frozen=True)
class Options(Keys):
    """Options of ``fair``."""

    weights: dict[str, PosFloat] = field(default_factory=dict)  # tenant -> share; 1 if not named
    input_weight: NonNegFloat = 1.0  # service of one prompt token
    output_weight: NonNegFloat = 2.0  # service of one output token
    lift: bool = True  # a returning tenant starts at the level of those who wait


class Fair(KeyedPolicy):
    """One bucket for each tenant; the key of the bucket is the tenant's counter."""

    claims = {"tenant_fair": True, "work_conserving": True}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, set[str]] = {}  # tenant -> rids; nobody without waiting requests is in here
        self._last = ""  # tenant that was the last to have something waiting
        self._level = 0.0  # where a returning tenant starts

    def bucket(self, request: RequestView) -> Hashable:
        return request.tenant

    def bucket_key(self, bucket: Hashable, planned_tokens: int, now: float) -> float:
        tenant = str(bucket)
        return self._counters.get(tenant, 0.0) + self._cost(tenant, self.options.input_weight * planned_tokens)

    def on_event(self, event: Event) -> None:
        if event.kind == "scheduled":  # service is counted when it is delivered
            return
        request = event.request
        tenant, rid = request.tenant, request.rid
        match event.kind:
            case "arrived" | "preempted":
                if tenant not in self._waiting:
                    self._return(tenant)
                self._waiting.setdefault(tenant, set()).add(rid)
            case "started":
                self._leave(tenant, rid)
                if request.num_preemptions == 0:
                    self._charge(tenant, self.options.input_weight * request.num_prompt_tokens)
            case "tokens":
                self._charge(tenant, self.options.output_weight * event.num_tokens)
            case "finished":
                self._leave(tenant, rid)

    def _return(self, tenant: str) -> None:
        """A tenant had nothing waiting and now has."""
        others = self._waiting or (self._last,)
        self._level = max(self._level, min(self._counters.get(one, 0.0) for one in others))
        counter = self._counters.get(tenant, 0.0)
        self._counters[tenant] = max(counter, self._level) if self.options.lift else counter
        if self.options.lift and len(self._counters) > 2 * len(self._waiting) + 64:  # who would be lifted is forgotten
            self._counters = {
                one: count for one, count in self._counters.items() if count > self._level or one in self._waiting
            } | {tenant: self._counters[tenant]}

    def _leave(self, tenant: str, rid: str) -> None:
        rids = self._waiting.get(tenant, set())
        rids.discard(rid)
        if not rids and self._waiting.pop(tenant, None) is not None:
            self._last = tenant

    def _charge(self, tenant: str, service: float) -> None:
        self._counters[tenant] = self._counters.get(tenant, self._level) + self._cost(tenant, service)

    def _cost(self, tenant: str, service: float) -> float:
        return service / float(self.options.weights.get(tenant, 1.0))

    def export_state(self) -> dict[str, Any]:
        return {"counters": dict(self._counters), "level": self._level}

    def import_state(self, policy: str, state: Any) -> None:
        """Counters go on where another fair-like policy left them; from others everyone starts even."""
        if policy == "fair":
            self._counters, self._level = dict(state["counters"]), float(state["level"])


@hookimpl
def register_schedulers(register: Register) -> None:
    register("fair", Fair, Options)
