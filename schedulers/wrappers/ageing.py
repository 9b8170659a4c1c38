"""Ageing: who has waited ``max_wait_s`` goes before everybody, longest wait first, whatever the inner policy says.

With ``preempt`` it does not even wait for room: running requests that have had their turn (``max_wait_s`` in the
running set and at least one token since they started) make way, longest turn first.  So nobody waits longer than
``max_wait_s`` plus a step unless all who run have had less than that.  A wait begins at arrival or preemption.
Of a policy that plans whole steps (``static_batch``, ``dynamic_batch``) all who have had their turn make way at once:
it would let nobody in between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.hookspecs import Register, hookimpl
from ...core.policy import Decision, Event, PolicyContext, SchedulerPolicy, SchedulerView
from ...core.request import RequestView, Status
from ..keys.options import PosFloat
from ..keys.wrapper import Wrapper


@dataclass(frozen=True)
class Options:
    """Options of ``ageing``."""

    max_wait_s: PosFloat = 10.0  # seconds
    preempt: bool = True  # running requests that have had their turn make way


class Ageing(Wrapper):
    """Keeps the time since which each request waits or runs."""

    breaks = frozenset({"arrival_order", "priority_order", "deadline_order", "shortest_first", "tenant_fair"})
    options: Any

    def __init__(self, options: Options | None, context: PolicyContext, inner: SchedulerPolicy) -> None:
        super().__init__(options or Options(), context, inner)
        self._since: dict[str, float] = {}  # waiting rid -> clock value (seconds)
        self._queue: deque[tuple[float, str]] = deque()  # the same by time, with entries of those who wait no more
        self._turns: dict[str, tuple[float, int]] = {}  # running rid -> (start of its turn, tokens it had then)

    def on_event(self, event: Event) -> Iterable[str] | None:
        request, now = event.request, event.now
        match event.kind:
            case "arrived" | "preempted":
                self._turns.pop(request.rid, None)
                self._since[request.rid] = now
                self._queue.append((now, request.rid))
            case "started":
                self._since.pop(request.rid, None)
                self._turns[request.rid] = now, request.num_output_tokens
            case "finished":
                self._since.pop(request.rid, None)
                self._turns.pop(request.rid, None)
        return self.inner.on_event(event)

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView] | None:
        return self._overdue_first(view) if self._anyone_overdue(view.now) else self.inner.order_waiting(view)

    def _anyone_overdue(self, now: float) -> bool:
        """Without looking at everybody."""
        while self._queue and self._since.get(self._queue[0][1]) != self._queue[0][0]:
            self._queue.popleft()
        return bool(self._queue) and self._overdue(self._queue[0][1], now)

    def _overdue_first(self, view: SchedulerView) -> Iterator[RequestView]:
        overdue = [request for request in view.waiting if self._overdue(request.rid, view.now)]
        yield from sorted(overdue, key=lambda request: (self._since[request.rid], request.seq))
        early = {request.rid for request in overdue}
        yield from (request for request in self.inner_order(view) if request.rid not in early)

    def _overdue(self, rid: str, now: float) -> bool:
        since = self._since.get(rid)
        return since is not None and since + self.options.max_wait_s <= now

    def select_victims(self, view: SchedulerView, need_blocks: int, for_request: RequestView) -> Sequence[str] | None:
        waiting = for_request.status is not Status.RUNNING
        if not (waiting and self.options.preempt and self._overdue(for_request.rid, view.now)):
            return self.inner.select_victims(view, need_blocks, for_request)
        chosen: list[str] = []
        for request in self._had_their_turn(view):
            chosen.append(request.rid)
            need_blocks -= view.held_blocks(request)
            if need_blocks <= 0:
                return chosen
        return self.inner.select_victims(view, need_blocks, for_request)

    def whole_step(self, view: SchedulerView) -> Decision | None:
        decision = super().whole_step(view)
        if decision is None or not (self.options.preempt and view.admitting and self._anyone_overdue(view.now)):
            return decision
        planned = {rid for rid, _ in decision.rows}
        passed_over = (
            request.rid
            for request in view.waiting
            if self._overdue(request.rid, view.now) and request.num_remaining_tokens and request.rid not in planned
        )
        if (first := next(passed_over, None)) is None:
            return decision
        victims = [one.rid for one in self._had_their_turn(view) if one.rid not in decision.preempt]
        return decision._replace(
            rows=[row for row in decision.rows if row[0] not in victims],
            preempt=[*decision.preempt, *victims],
            reasons={**decision.reasons, **dict.fromkeys(victims, f"preempted for {first}, which has waited too long")},
        )

    def _had_their_turn(self, view: SchedulerView) -> Iterator[RequestView]:
        """Who has run for ``max_wait_s`` and got a token, longest first."""
        for request in sorted(view.running, key=lambda one: self._turns.get(one.rid, (view.now, 0))):
            start, had = self._turns.get(request.rid, (view.now, 0))
            if start + self.options.max_wait_s > view.now:
                return
            if request.num_output_tokens > had:
                yield request


@hookimpl
def register_wrappers(register: Register) -> None:
    register("ageing", Ageing, Options)
