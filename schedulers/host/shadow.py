"""A second policy that is asked at every step and never obeyed: what would it have done here?

It hears of the same events as the policy in force and sees the same views: the engine as it really is, with its own
waiting order over the real waiting requests and a what-if draft of the real pool.  So every answer is one step ahead
from the real state; states that its own earlier answers would have led to are not imagined.  It has its own guard, and
a policy that keeps plans between steps (a batch it wants to form) keeps plans that were not carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.policy import Decision, Event, SchedulerView
from ...core.request import RequestView, Status
from .guard import Guard
from .planner import Planner
from .record import Request

#: A note names at most so many requests of each kind.
MOST_NAMED = 16


class Shadow:
    """The second planner, and what it counts: ``steps`` asked, ``diverged``, ``refusals`` that were not applied."""

    def __init__(self, guard: Guard, max_bypass: int, requests: Sequence[RequestView], now: float) -> None:
        """``requests`` are alive already, as after a swap."""
        self.planner = Planner(guard, max_bypass)
        self.steps = self.diverged = self.refusals = 0
        for request in sorted(requests, key=lambda request: request.seq):
            self.on_event(Event("arrived", request, 0, now))
            if request.status is Status.RUNNING:
                self.on_event(Event("started", request, 0, now))

    def on_event(self, event: Event) -> None:
        self.planner.on_event(event)

    def admit(self, request: RequestView, view: SchedulerView) -> str | None:
        """Why the shadow would have refused a request that was accepted."""
        reason = self.planner.admit(request, view)
        self.refusals += reason is not None
        return reason

    def compare(self, view: SchedulerView, running: Mapping[str, Request], real: Decision) -> dict[str, Any] | None:
        """How the shadow's decision differs from ``real``, as facts for the journal; None if it does not.

        The order of service counts too: whoever stands first gets what is left of the budget.
        """
        self.steps += 1
        try:
            own = self.planner.plan(view, running)
            same = tuple(real.rows) == tuple(own.rows) and set(real.preempt) == set(own.preempt)
            facts = None if same else difference(real, own)
        except Exception as error:  # noqa: BLE001 - whatever a shadow answers must not reach the engine
            self.planner.reject("schedule", f"{type(error).__name__}: {error}")
            return None
        if facts is None:
            return None
        self.diverged += 1
        return {"policy": self.planner.name, "step": view.step + 1, **facts}

    def stats(self) -> dict[str, float]:
        faults = self.planner.stats()["policy_faults"]
        return {
            "shadow_steps": self.steps,
            "shadow_diverged": self.diverged,
            "shadow_refusals": self.refusals,
            "shadow_faults": faults,
        }


def difference(real: Decision, own: Decision) -> dict[str, Any]:
    """Who is served by one only, who gets other counts, who is preempted; ``reordered`` if those in common are."""
    real_tokens, own_tokens = dict(real.rows), dict(own.rows)
    common = [rid for rid in real_tokens if rid in own_tokens]
    named: dict[str, list[Any]] = {
        "only_real": [rid for rid in real_tokens if rid not in own_tokens],
        "only_shadow": [rid for rid in own_tokens if rid not in real_tokens],
        "tokens": [[rid, real_tokens[rid], own_tokens[rid]] for rid in common if real_tokens[rid] != own_tokens[rid]],
        "preempt_real": list(real.preempt),
        "preempt_shadow": list(own.preempt),
    }
    short = {key: value[:MOST_NAMED] for key, value in named.items() if value}
    return {**short, "reordered": common != [rid for rid in own_tokens if rid in real_tokens]}
