"""From a policy's narrow hooks to one decision: running before waiting, victims when blocks are short.

The planner keeps the waiting requests in the policy's order and works on read-only views and on a what-if draft of
the KV pool; the host checks its decision and carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from ...core.policy import AllocationDraft, Decision, Event, SchedulerView
from ...core.request import RequestView, Status
from .guard import Guard
from .record import Request
from .waiting import InOrder, WaitingQueue


class Planner:
    """Asks the policy, through the guard, and composes what it says."""

    def __init__(self, guard: Guard, max_bypass: int) -> None:
        self.guard = guard
        self.max_bypass = max_bypass
        self._bypassed: dict[str, int] = {}  # waiting rid -> later requests admitted while it did not fit
        self._waiting = self._new_queue(guard)

    @property
    def name(self) -> str:
        return self.guard.name

    @property
    def listens(self) -> bool:
        """The policy wants to hear of every row and token, not only of the lifecycle."""
        return self.guard.overrides("on_event")

    def reject(self, hook: str, reason: str) -> None:
        self.guard.reject(hook, reason)

    def stats(self) -> Mapping[str, float]:
        return {"policy_faults": sum(self.guard.faults.values())}

    def admit(self, request: RequestView, view: SchedulerView) -> str | None:
        return self.guard.call("admit", request, view) if self.guard.overrides("admit") else None

    def on_event(self, event: Event) -> None:
        """Keep the waiting order, and pass the event on to a policy that listens."""
        if self.listens:
            named = self.guard.call("on_event", event)
            if named:
                self._waiting.rekey(named, event.now)
        match event.kind:
            case "arrived" | "preempted":
                self._waiting.add(event.request, event.now)
            case "started" | "finished":
                self._waiting.discard(event.request.rid)
                self._bypassed.pop(event.request.rid, None)

    def plan(self, view: SchedulerView, running: Mapping[str, Request]) -> Decision:
        """One step's decision.  ``running`` are the records behind ``view.running``, which this only reads: views are
        for policies, and cost a call for each look.  Raises nothing that the policy caused."""
        if self.guard.policy.rekey == "step" and len(self._waiting):
            self._waiting.rekey(self._waiting.rids(), view.now)
        view.waiting = InOrder(self._waiting, view.now)
        if self.guard.overrides("schedule"):
            decision: Decision | None = self.guard.call("schedule", view)
            if decision is not None:
                return decision
        return _Step(self, view, running).compose()

    def in_order(self, view: SchedulerView, planned: Counter[Hashable]) -> Iterator[RequestView]:
        """Waiting requests as the policy orders them, lazily; ``planned`` tokens by bucket, counted by the caller."""
        if self.guard.overrides("order_waiting"):
            ordered = self.guard.call("order_waiting", view)
            if ordered is not None:
                return self._checked(ordered)
        return self._waiting.pick(view.now, planned)

    def bucket_of(self, request: RequestView) -> Hashable:
        return self._waiting.bucket_of(request.rid)

    def _checked(self, ordered: Iterable[RequestView]) -> Iterator[RequestView]:
        """The policy's own order, stopping at the first answer that is not a waiting request."""
        seen = set[str]()
        try:
            for request in ordered:
                if request.rid in seen or request.rid not in self._waiting:
                    self.reject("order_waiting", f"{request.rid!r} is not waiting or came twice")
                    return
                seen.add(request.rid)
                yield request
        except Exception as error:  # noqa: BLE001 - the policy's own iterator
            self.reject("order_waiting", f"{type(error).__name__}: {error}")

    def may_pass(self, request: RequestView) -> bool:
        """A newcomer too large for the free blocks lets at most ``max_bypass`` others go first."""
        return request.status is Status.WAITING and self._bypassed.get(request.rid, 0) < self.max_bypass

    def passed(self, rids: Iterable[str]) -> None:
        """A later request was admitted before these."""
        for rid in rids:
            self._bypassed[rid] = self._bypassed.get(rid, 0) + 1

    @staticmethod
    def _new_queue(guard: Guard) -> WaitingQueue:
        return WaitingQueue(
            lambda request, now: guard.call("waiting_key", request, now),
            lambda request: guard.call("bucket", request),
            lambda bucket, planned, now: guard.call("bucket_key", bucket, planned, now),
        )

    def swap(self, guard: Guard, requests: Sequence[RequestView], now: float) -> None:
        """Put another policy in; it hears of every live request.  Raises, with nothing changed, if it cannot take over.

        The hand-over runs outside the guard: here an exception must be seen.
        """
        guard.ask("import_state", self.guard.name, self.guard.call("export_state"))
        for request in sorted(requests, key=lambda request: request.seq):
            guard.ask("on_event", Event("arrived", request, 0, now))
            if request.status is Status.RUNNING:
                guard.ask("on_event", Event("started", request, 0, now))
        waiting = self._new_queue(guard)
        for request in requests:
            if request.status is not Status.RUNNING:
                waiting.add(request, now)
        self.guard, self._waiting = guard, waiting


class Served(Decision):
    """Running requests only, whose blocks were taken from a draft one by one: they fit, without another look."""

    __slots__ = ()


class _Step:
    """One step being composed.  A victim's tokens go back to the budget."""

    def __init__(self, planner: Planner, view: SchedulerView, running: Mapping[str, Request]) -> None:
        self._planner, self._guard, self._view = planner, planner.guard, view
        self._blocks: AllocationDraft = view.draft()
        self._budget = view.token_budget
        self._slots = view.max_running - view.num_running
        self._running = dict(running)
        self._rows: dict[str, int] = {}
        self._preempted: dict[str, str] = {}
        self._reasons: dict[str, str] = {}

    def compose(self) -> Decision:
        view, guard = self._view, self._guard
        caps: Mapping[str, int] | None = None
        if guard.overrides("split_budget"):
            caps = guard.call("split_budget", view)
            if caps is not None and (fault := self._fault(caps)):
                self._planner.reject("split_budget", fault)
                caps = None
        self._serve_running(caps)
        served = len(self._rows)
        cap = view.token_budget if caps is None else caps.get("*", view.token_budget)
        if not self._preempted and view.admitting and view.num_waiting and cap > 0:
            self._admit_waiting(cap)
        reasons = {**self._reasons, **self._preempted}
        kind = Decision if self._preempted or len(self._rows) > served else Served
        return kind(tuple(self._rows.items()), tuple(self._preempted), (), reasons)

    def _fault(self, caps: Mapping[str, int]) -> str:
        if (
            caps.keys() <= {*self._running, "*"}
            and {*map(type, caps.values())} <= {int}
            and min(caps.values(), default=0) >= 0
        ):
            return ""
        for rid, cap in caps.items():
            if rid not in self._running and rid != "*":
                return f"{rid!r} is not running"
            if not isinstance(cap, int) or cap < 0:
                return f"{rid!r} has the cap {cap!r}"
        return ""

    # --- running -----------------------------------------------------------------------------------------------------

    def _serve_running(self, caps: Mapping[str, int] | None) -> None:
        """In the order of ``caps``, or of admission.  The hot loop: every request, every step."""
        rows, preempted, budget, extend = self._rows, self._preempted, self._budget, self._blocks.extend
        running = self._running if caps is None else {rid: self._running[rid] for rid in caps if rid != "*"}
        for rid, request in tuple(running.items()):
            if budget <= 0:
                break
            if rid in preempted:  # for an earlier one
                continue
            count = request.remaining()
            if count > budget:
                count = budget
            if caps is not None and count > caps[rid]:
                count = caps[rid]
            if count > 0:
                total = request.num_computed_tokens + count
                if short := extend(rid, total):
                    self._budget = budget
                    made = self._make_room(request.view, total, short)
                    budget = self._budget  # victims give theirs back
                    if not made:
                        continue
                rows[rid] = count
                budget -= count
        self._budget = budget

    def _make_room(self, request: RequestView, total: int, short: int) -> bool:
        """Victims until a running request can hold ``total`` tokens, of which ``short`` blocks are missing."""
        victims = self._victims(request, short)
        named = list(reversed(self._running)) if victims is None else victims
        for rid in (*named, request.rid):
            if self._blocks.fenced_blocks >= short:
                return False  # enough comes back when the steps in flight are booked
            self._preempt(rid, f"preempted for {request.rid}, which needs {short} more blocks")
            if rid == request.rid:
                return False
            if not (short := self._blocks.extend(request.rid, total)):
                return True
        return False

    def _victims(self, request: RequestView, short: int) -> Sequence[str] | None:
        """Whom the policy names, in order; None if it leaves the choice to the default."""
        if not self._guard.overrides("select_victims"):
            return None
        rids: Sequence[str] | None = self._guard.call("select_victims", self._view, short, request)
        if rids is not None and (
            wrong := [rid for rid in rids if rid not in self._running and rid not in self._preempted]
        ):
            self._planner.reject("select_victims", f"victim {wrong[0]!r} is not running")
            return None
        return None if rids is None else [rid for rid in dict.fromkeys(rids) if rid in self._running]

    def _preempt(self, rid: str, reason: str) -> None:
        self._budget += self._rows.pop(rid, 0)
        self._slots += 1
        self._blocks.release(rid)
        del self._running[rid]
        self._preempted[rid] = reason

    # --- waiting -----------------------------------------------------------------------------------------------------

    def _admit_waiting(self, cap: int) -> None:
        reserved, passed, planned = -1, list[str](), Counter[Hashable]()
        for request in self._planner.in_order(self._view, planned):
            if self._budget <= 0:
                self._reasons[request.rid] = "the step's token budget is used up"
                return
            if not request.num_remaining_tokens:
                continue  # paused, or its last id is still being sampled
            if self._slots <= 0 and not self._take_slot(request):
                self._reasons[request.rid] = f"all {self._view.max_running} slots are running"
                return
            if reserved < 0:  # costs a pass over all who run: only when somebody could be admitted
                reserved = self._reserved()
            if not self._admit(request, cap, reserved):
                if self._preempted or not self._planner.may_pass(request):
                    return  # what was freed for this request goes to nobody else
                passed.append(request.rid)
                if len(passed) > self._planner.max_bypass:
                    return  # enough was tried for one step
                continue
            reserved += self._blocks.need(request.rid, self._reserve(request))
            planned[self._planner.bucket_of(request)] += request.num_tokens
            self._planner.passed(passed)

    def _reserved(self) -> int:
        """Blocks that are still promised to running requests, at least for the context they have, and the watermark."""
        estimates = self._guard.overrides("reserve")
        promised = sum(
            self._blocks.need(request.rid, self._reserve(request.view))
            for request in self._running.values()
            if estimates or request.num_tokens - request.num_computed_tokens > 1
        )
        return promised + (int(self._view.watermark * self._view.num_blocks) if self._running else 0)

    def _reserve(self, request: RequestView) -> int:
        """Tokens to keep room for: what the policy estimates, never less than the known context."""
        if not self._guard.overrides("reserve"):
            return request.num_tokens
        tokens = self._guard.call("reserve", request, self._view)
        if not isinstance(tokens, int):
            self._planner.reject("reserve", f"{tokens!r} is not a number of tokens")
            return request.num_tokens
        return max(request.num_tokens, tokens)

    def _admit(self, request: RequestView, cap: int, reserved: int) -> bool:
        cached = self._blocks.match(request)
        count = min(request.num_remaining_tokens - cached, self._budget, cap)
        short = self._short(request, reserved)
        if count <= 0 or (short and not self._make_way(request, short, reserved)):
            need = self._blocks.need(request.rid, request.num_tokens)
            self._blocks.unmatch(request.rid)
            self._reasons[request.rid] = f"needs {need} blocks, {self._blocks.free_blocks} free, {reserved} reserved"
            return False
        self._blocks.extend(request.rid, cached + count)
        self._rows[request.rid] = count
        self._budget -= count
        self._slots -= 1
        return True

    def _short(self, request: RequestView, reserved: int) -> int:
        """Blocks missing to admit a newcomer beside what is reserved; an idle engine needs no more than its context."""
        idle = not self._running and not self._rows
        tokens = request.num_tokens if idle else self._reserve(request)
        return max(0, self._blocks.need(request.rid, tokens) + reserved - self._blocks.free_blocks)

    def _make_way(self, request: RequestView, short: int, reserved: int) -> bool:
        """Victims that the policy names for a waiting request, until its context fits."""
        for rid in self._victims(request, short) or ():
            if self._blocks.fenced_blocks >= short:
                return False
            self._preempt(rid, f"preempted for {request.rid}, which needs {short} more blocks")
            if not (short := self._short(request, reserved)):
                return True
        return False

    def _take_slot(self, request: RequestView) -> bool:
        """All slots taken: only a policy that names a victim for a waiting request may free one."""
        for rid in (self._victims(request, 0) or ())[:1]:
            self._preempt(rid, f"preempted for {request.rid}, which needs its slot")
        return self._slots > 0
