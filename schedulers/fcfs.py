"""First come, first served: continuous batching with chunked prefill under one token budget.

Running requests go before waiting ones, in order of admission; when blocks run out the latest admitted is preempted
and recomputed later, before anyone who never ran.  These are the kernel's defaults, so the policy adds nothing but
the shared options.
"""

from __future__ import annotations

from ..core.hookspecs import Register, hookimpl
from .keys.options import KeyedPolicy, Keys


class Fcfs(KeyedPolicy):
    """Arrival order."""

    claims = {"arrival_order": True, "work_conserving": True}


@hookimpl
def register_schedulers(register: Register) -> None:
    register("fcfs", Fcfs, Keys)
