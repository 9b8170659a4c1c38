"""Tenant share: no tenant takes more than its share of the running set while somebody else is waiting.

A tenant at its share is not refused and not idle either: its requests go after those of tenants below theirs, and
within each of the two groups the inner policy's order holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from ...core.hookspecs import Register, hookimpl
from ...core.policy import PolicyContext, SchedulerPolicy, SchedulerView
from ...core.request import RequestView
from ..keys.wrapper import Wrapper

Share = Annotated[float, Meta(gt=0, le=1)]


@dataclass(frozen=True)
class Options:
    """Options of ``tenant_share``."""

    shares: dict[str, Share] = field(default_factory=dict)  # tenant -> part of ``scheduler.max_running``
    default: Share = 0.5  # of tenants that are not named


class TenantShare(Wrapper):
    """Counts the running requests of each tenant."""

    breaks = frozenset({"arrival_order", "priority_order", "deadline_order", "shortest_first", "bounded_bypass"})
    options: Any

    def __init__(self, options: Options | None, context: PolicyContext, inner: SchedulerPolicy) -> None:
        super().__init__(options or Options(), context, inner)

    def order_waiting(self, view: SchedulerView) -> Iterator[RequestView]:
        running = Counter(request.tenant for request in view.running)
        over: list[RequestView] = []
        for request in self.inner_order(view):
            if running[request.tenant] >= self._slots(request.tenant, view.max_running):
                over.append(request)
            else:
                running[request.tenant] += 1
                yield request
        yield from over

    def _slots(self, tenant: str, max_running: int) -> int:
        return max(1, int(self.options.shares.get(tenant, self.options.default) * max_running))


@hookimpl
def register_wrappers(register: Register) -> None:
    register("tenant_share", TenantShare, Options)
