"""Policies that are wrong on purpose, one mistake each; every mistake is caught by the law it breaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mainspring.core.policy import Decision, Event, SchedulerPolicy, SchedulerView
from mainspring.core.request import RequestView, Status


def everyone(view: SchedulerView) -> list[tuple[str, int]]:
    """Running first, then as many of the waiting as the budget and the slots hold."""
    rows, budget = list[tuple[str, int]](), view.token_budget
    slots = view.max_running - view.num_running
    for request in (*view.running, *view.waiting):
        count = min(request.num_remaining_tokens, budget)
        if count > 0 and (request.status is Status.RUNNING or slots > 0):
            rows.append((request.rid, count))
            budget -= count
            slots -= request.status is not Status.RUNNING
    return rows


class Starves(SchedulerPolicy):
    """Never lets one tenant in."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        return [request for request in view.waiting if request.tenant != "b"]


class SleepsForever(SchedulerPolicy):
    """Schedules nothing, and asks to be called again soon."""

    def schedule(self, view: SchedulerView) -> Decision:
        return Decision((), wake_at=view.now + 0.001)


class ServesNobody(SchedulerPolicy):
    """Lets requests in and then forgets them."""

    def split_budget(self, view: SchedulerView) -> Mapping[str, int]:
        return {"*": 4}


class LeaksTheBudget(SchedulerPolicy):
    """Gives everybody all they could take."""

    def schedule(self, view: SchedulerView) -> Decision:
        everybody = (*view.running, *view.waiting)[: view.max_running]
        return Decision([(request.rid, max(1, request.num_remaining_tokens)) for request in everybody])


class OrdersTiesByHash(SchedulerPolicy):
    """Its order differs from process to process."""

    def waiting_key(self, request: RequestView, now: float) -> int:
        return hash(request.rid)


class OrdersByAddress(SchedulerPolicy):
    """Its order differs from object to object."""

    def waiting_key(self, request: RequestView, now: float) -> int:
        return id(request) // 16 % 97


class MutatesTheRequest(SchedulerPolicy):
    """Assigns to a view."""

    def waiting_key(self, request: RequestView, now: float) -> int:
        request.priority = 0  # type: ignore[misc]
        return request.seq


class MutatesTheShares(SchedulerPolicy):
    """Writes into a mapping that it is shown."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        view.tenant_tokens["a"] = 0  # type: ignore[index]
        return view.waiting


class Raises(SchedulerPolicy):
    """Fails once it has work."""

    def split_budget(self, view: SchedulerView) -> Mapping[str, int]:
        return {request.rid: 10 // abs(request.num_output_tokens - 1) for request in view.running}


class RaisesWhileRead(SchedulerPolicy):
    """Fails in the middle of a lazy order."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        yield from view.waiting
        raise LookupError("nobody is left")


class NeverReturns(SchedulerPolicy):
    """Loops, and swallows exceptions while it does."""

    def schedule(self, view: SchedulerView) -> Decision | None:
        while view.num_waiting:
            try:
                sum(range(100))
            except Exception:  # noqa: BLE001
                continue
        return None


class NeverEndsItsOrder(SchedulerPolicy):
    """Its lazy order never comes to an end, nor to the next request."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        yield from view.waiting
        while True:
            sum(range(100))


class LooksIntoTheFuture(SchedulerPolicy):
    """Asks for the length that only the finish check may know."""

    def waiting_key(self, request: RequestView, now: float) -> int:
        return getattr(request, "forced_length", None) or request.max_tokens


class KeepsViews(SchedulerPolicy):
    """Remembers the requests themselves."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.seen: dict[str, RequestView] = {}

    def on_event(self, event: Event) -> None:
        self.seen[event.request.rid] = event.request


class NamesStrangers(SchedulerPolicy):
    """Schedules somebody who is not there."""

    def schedule(self, view: SchedulerView) -> Decision:
        return Decision([*((rid, 1) for rid, _ in everyone(view)[:1]), ("stranger", 1)][-view.token_budget :])


class OrdersStrangers(SchedulerPolicy):
    """Puts a running request into the waiting order."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        return [*view.running[:1], *view.waiting]


class CapsStrangers(SchedulerPolicy):
    """Caps a request that does not run."""

    def split_budget(self, view: SchedulerView) -> Mapping[str, int]:
        return {**{request.rid: 8 for request in view.running}, "stranger": 1}


class NamesTwice(SchedulerPolicy):
    """Schedules the first request twice."""

    def schedule(self, view: SchedulerView) -> Decision:
        rows = [(rid, 1) for rid, _ in everyone(view)][: max(1, view.token_budget - 1)]
        return Decision([*rows, *rows[:1]][: view.token_budget])


class OrdersTwice(SchedulerPolicy):
    """Everybody waits twice."""

    def order_waiting(self, view: SchedulerView) -> Iterable[RequestView]:
        return [request for request in view.waiting for _ in range(2)]


class NegativeCounts(SchedulerPolicy):
    """Takes tokens back from one to give them to another."""

    def schedule(self, view: SchedulerView) -> Decision:
        rows = everyone(view)
        return Decision([(rid, -1 if at else count) for at, (rid, count) in enumerate(rows)])


class NegativeCaps(SchedulerPolicy):
    """A cap below nothing."""

    def split_budget(self, view: SchedulerView) -> Mapping[str, int]:
        return {request.rid: -1 for request in view.running}


class ReservesHalves(SchedulerPolicy):
    """There is no half token."""

    def reserve(self, request: RequestView, view: SchedulerView) -> int:
        return request.num_tokens / 2  # type: ignore[return-value]


class WaitingVictims(SchedulerPolicy):
    """Takes out who never ran."""

    def select_victims(self, view: SchedulerView, need_blocks: int, for_request: RequestView) -> Sequence[str]:
        return [for_request.rid + "?"]


class PreemptsWaiting(SchedulerPolicy):
    """The same in a full decision."""

    def schedule(self, view: SchedulerView) -> Decision:
        return Decision(everyone(view), preempt=["stranger"] if view.num_waiting else [])


class AnswersNonsense(SchedulerPolicy):
    """Not a decision at all."""

    def schedule(self, view: SchedulerView) -> Any:
        return "everybody"


class ClaimsArrivalOrder(SchedulerPolicy):
    """Serves the last first and claims the opposite."""

    claims = {"arrival_order": True}

    def waiting_key(self, request: RequestView, now: float) -> int:
        return -request.seq


class ClaimsPriorityOrder(ClaimsArrivalOrder):
    claims = {"priority_order": True}


class ClaimsDeadlineOrder(ClaimsArrivalOrder):
    claims = {"deadline_order": True}


class ClaimsShortestFirst(ClaimsArrivalOrder):
    claims = {"shortest_first": True}


class ClaimsBoundedBypass(ClaimsArrivalOrder):
    claims = {"bounded_bypass": 2}


class ClaimsToBeBusy(SchedulerPolicy):
    """Gives each request one token at a time."""

    claims = {"work_conserving": True}

    def split_budget(self, view: SchedulerView) -> Mapping[str, int]:
        return {**{request.rid: 1 for request in view.running}, "*": 0 if view.num_running else 1}


class ClaimsFairness(SchedulerPolicy):
    """One tenant is served only when the other has nothing."""

    claims = {"tenant_fair": True}

    def waiting_key(self, request: RequestView, now: float) -> Any:
        return (request.tenant != "much", request.seq)


class RaisesInSmallPools(SchedulerPolicy):
    """Only an engine that the standard traffic does not have shows it."""

    def waiting_key(self, request: RequestView, now: float) -> int:
        assert self.context.num_blocks != 9, "I did not expect nine blocks"
        return request.seq
