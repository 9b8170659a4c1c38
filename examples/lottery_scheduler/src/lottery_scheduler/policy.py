"""A lottery between tenants: the next request to admit belongs to a tenant drawn by tickets.

Within a tenant requests go in order of arrival.  Nobody with a ticket starves: each draw gives every waiting tenant
its share of the chances, whoever came before.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from mainspring.core.hookspecs import Register, hookimpl
from mainspring.core.policy import PolicyContext, SchedulerPolicy
from mainspring.core.request import RequestView

Tickets = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class Options:
    """The table ``[scheduler.options]``.  Names, types and ranges are checked before the server starts."""

    tickets: dict[str, Tickets] = field(default_factory=dict)  # tenant -> tickets
    default_tickets: Tickets = 1  # of tenants that are not named


class Lottery(SchedulerPolicy):
    """Draws the tenant, then takes its oldest request."""

    #: Tried by ``pytest --policy lottery``, beside the laws that every policy keeps.
    claims = {"work_conserving": True}

    def __init__(self, options: Options | None, context: PolicyContext) -> None:
        super().__init__(options or Options(), context)

    def bucket(self, request: RequestView) -> str:
        """A queue for each tenant."""
        return request.tenant

    def bucket_key(self, bucket: Hashable, planned_tokens: int, now: float) -> Any:
        """The smallest key wins.  Of exponential draws, each is the smallest with a chance equal to its rate's share,
        so that this is a draw by tickets.  The generator is the only randomness that a policy may use."""
        tickets = self.options.tickets.get(bucket, self.options.default_tickets)
        return self.context.rng.expovariate(tickets)


@hookimpl
def register_schedulers(register: Register) -> None:
    register("lottery", Lottery, Options)
