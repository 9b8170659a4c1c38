"""The scheduler host: it owns the request records and turns a planner's wishes into steps.

Everything a policy must not break lives here: one token budget per step, the lifecycle, the merge with the
allocator's exact need, work in flight, and the rule that every accepted request ends exactly once.  A step may be
planned while another is in flight (``depth``): in-flight tokens count as computed, so policies never see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from ...core import messages as m
from ...core.hookspecs import Register, hookimpl
from ...core.policy import AllocationDraft, Decision, SchedulerView
from .decisions import fault_of, first_come
from .lifecycle import Flight, Lifecycle
from .planner import Served
from .record import Request

MAX_TENANTS = 4096  # whose tokens are counted
#: Longest step beside which depth "auto" plans the next: what lies between two steps takes about a millisecond, worth
#: hiding where it is more than a twentieth.  Beside longer ones an arrival would wait for two of them.
AHEAD_S = 0.02


class SchedulerHost(Lifecycle):
    """The scheduler actor.  ``handle(message, now)`` is its only door; it returns messages and touches nothing else."""

    _awake = False  # a ``Wake`` is on its way

    @cached_property
    def _handlers(self) -> dict[type[m.Message], Callable[[Any, float], Iterable[m.Message] | None]]:
        return {
            m.Submit: self._submit,
            m.Cancel: self._cancel,
            m.Pause: self._pause,
            m.Resume: self._pause,
            m.Stop: self._stop,
            m.Control: self._control,
            m.Swap: self._swap,
            m.StepGrant: self._granted,
            m.StepResult: self._book,
            m.Wake: self._wake,
        }

    def draft(self) -> AllocationDraft:
        """The allocator's overlay, with what the next plan releases already given back."""
        draft = self.allocator.draft()
        for rid in (*self._released, *self._preempted):
            draft.release(rid)
        return draft

    def handle(self, message: m.Message, now: float) -> list[m.Message]:
        """Take one message; returns an ``Emit`` if anybody has news, then a plan or a ``Wake`` if there is work."""
        out = list(self._handlers[type(message)](message, now) or ())
        if self._emit:
            step = message.step if isinstance(message, m.StepResult) else -1
            out.insert(0, m.Emit(step, tuple(self._emit)))
            self._emit.clear()
        more = type(message) is not m.Wake or m.StepPlan in map(type, out)
        if more and (self.records or self._released) and not self._awake and self._has_room():
            self._awake = True
            out.append(m.Wake())
        return out

    def _swap(self, message: m.Swap, now: float) -> list[m.Message]:
        """Another policy, wrappers and limits from the next plan on; a failed hand-over leaves everything as it was."""
        old, new = self.config, message.scheduler
        facts = {"old": old.use, "new": new.use, "options": new.options, "wrap": new.wrap, "step": self.step}
        try:
            guard, shadow = self._new_guard(new), self._new_shadow(new, now)
            self.planner.swap(guard, [request.view for request in self.records.values()], now)
        except Exception as error:  # noqa: BLE001 - a hand-over that fails leaves the old policy in place
            return [m.Note("", "scheduler.swap_failed", {**facts, "error": f"{type(error).__name__}: {error}"})]
        self.config, self.shadow = new, shadow
        return [m.Note("", "scheduler.swapped", facts)]

    # --- results -----------------------------------------------------------------------------------------------------

    def _book(self, message: m.StepResult, now: float) -> None:
        rows, num_tokens = self._in_flight.pop(message.step)
        self.step_time.observe(num_tokens, message.finished - message.launched)
        failed, listens = dict(message.failed), self._listens
        records, emit = self.records, self._emit
        for rid, token in zip(message.rids, message.token_ids, strict=True):
            request = records.get(rid)
            if request is None:  # ended while the step was in flight
                self.counters["wasted_tokens"] += 1
                continue
            request.num_pending -= 1
            if rid in failed:
                request.num_tokens -= 1
                continue
            request.output_ids.append(token)
            if request.first_token is None:
                request.first_token = now
            reason, stop = self._ending(request, token) if request.watches_ids else (request.full(), None)
            if listens:
                self._event("tokens", request, 1, now)
            if reason is None:
                emit.append(m.EmitRow(rid, (token,)))
            else:
                self._end(request, reason, now, (token,), stop)
        for rid, why in failed.items():
            if request := self.records.get(rid):
                self._fail(request, why, now)
        if len(message.rids) == len(rows):
            return
        for rid in [row.rid for row in rows if not row.samples]:
            request = self.records.get(rid)
            if request and request.submit.warm and request.num_computed_tokens == request.num_prompt_tokens:
                self._end(request, m.FinishReason.LENGTH, now)

    def _ending(self, request: Request, token: int) -> tuple[m.FinishReason | None, int | None]:
        """Whether ``token``, just appended, ends the request, and the stop id that did it."""
        sampling = request.submit.sampling
        if len(request.output_ids) > sampling.min_tokens:
            if token in sampling.stop_token_ids:
                return m.FinishReason.STOP, token
            if token in self.info.end_token_ids and not sampling.ignore_eos:
                return m.FinishReason.STOP, None
        return request.full(), None

    def _granted(self, message: m.StepGrant, now: float) -> None:
        """Rows that got no room although they were planned: put back, to be recomputed."""
        for row in self._in_flight[message.step].rows if message.denied else ():
            if row.rid in message.denied and (request := self.records.get(row.rid)):
                self.counters["denied"] += 1
                request.num_pending -= row.samples
                request.num_tokens -= row.samples
                self._preempt(request, now)
        if not message.rows:
            self._in_flight.pop(message.step, None)

    # --- planning ----------------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        """Whether a step may be planned now, beside what is in flight."""
        flights, depth = self._in_flight, self.config.depth
        if depth != "auto":
            return len(flights) < depth
        if len(flights) != 1:
            return not flights
        (flight,) = flights.values()
        return 0.0 < self.step_time.after_the_last(flight.num_tokens) <= AHEAD_S

    def _wake(self, message: m.Wake, now: float) -> list[m.Message]:
        self._awake = False
        if not self._has_room():
            return []
        self._expire(now)
        try:
            decision = self.planner.plan(SchedulerView(self, now), self.running)
            fault = fault_of(decision, self, now)
        except Exception as error:  # noqa: BLE001 - a planner that raises costs one decision
            fault = f"{type(error).__name__}: {error}"
        if fault:
            self.planner.reject("schedule", fault)
            decision = first_come(self)
        if self.shadow and (facts := self.shadow.compare(SchedulerView(self, now), self.running, decision)):
            return [m.Note("", "scheduler.shadow", facts), *self._apply(decision, now)]
        return self._apply(decision, now)

    def _apply(self, decision: Decision, now: float) -> list[m.Message]:
        """Carry out a decision as far as the pool allows."""
        started: list[m.Started] = []
        rows: list[m.Row] = []
        spent: dict[str, int] = {}
        for rid in decision.preempt:
            self._preempt(self.running[rid], now)
        draft = None if type(decision) is Served else self.draft()
        listens, records, running = self._listens, self.records, self.running
        for rid, wish in decision.rows:
            request, cached, count = records[rid], None, wish
            if rid not in running:
                if draft is None or not self.admitting or not (remaining := request.remaining()):
                    continue
                cached = draft.match(request.view)
                if draft.need(rid, request.num_tokens) > draft.free_blocks:  # only when its whole context fits
                    draft.unmatch(rid)
                    continue
                count = min(wish, remaining - cached)
            elif draft is not None:
                count = min(wish, request.remaining())
            if count > 0 and (draft is None or not draft.extend(rid, (cached or request.num_computed_tokens) + count)):
                if cached is not None:
                    started.append(self._start(request, cached, now))
                rows.append(self._row(request, count))
                tenant = request.submit.tenant
                spent[tenant] = spent.get(tenant, 0) + count
                if listens:
                    self._event("scheduled", request, count, now)
        self.tenant_tokens.update(spent)
        if len(self.tenant_tokens) > MAX_TENANTS:  # clients choose these names
            for tenant, _ in self.tenant_tokens.most_common()[MAX_TENANTS // 2 :]:
                del self.tenant_tokens[tenant]
        if decision.rows and not rows and not self._in_flight:
            self._unblock(now)
        return self._plan(decision, tuple(rows), tuple(started), now)

    def _unblock(self, now: float) -> None:
        """Nothing planned fits and nothing is coming back: the latest admitted makes room, then forks that have not
        started give up what they share, and only a giant that has the pool to itself ends."""
        held = (rid for rid in self.records if rid not in self.running and self.allocator.held_blocks(rid))
        if self.running:
            self._preempt(next(reversed(self.running.values())), now)
        elif (fork := next(held, None)) is not None:
            self._preempted.append(fork)
        elif request := next((one for one in self.records.values() if one.num_remaining_tokens), None):
            self._fail(
                request, "its context does not fit into the KV blocks that can be had", now, "kv_capacity_exceeded"
            )

    def _plan(
        self, decision: Decision, rows: tuple[m.Row, ...], started: tuple[m.Started, ...], now: float
    ) -> list[m.Message]:
        out: list[m.Message] = []
        if rows or self._released or self._preempted:
            self.step += 1
            released, preempted, padding = tuple(self._released), tuple(self._preempted), tuple(decision.padding)
            reasons = tuple(decision.reasons.items())
            out = [m.StepPlan(self.step, rows, started, released, preempted, padding if rows else (), reasons)]
            self._released.clear()
            self._preempted.clear()
        if rows:
            self._in_flight[self.step] = Flight(rows, sum([row.count for row in rows]))
            self.counters["steps"] += 1
        if decision.wake_at is not None and decision.wake_at > now:
            out.append(m.Alarm(decision.wake_at))
        return out

    def _row(self, request: Request, count: int) -> m.Row:
        start = request.num_computed_tokens
        output, stop, tokens = request.output_ids, start + count, request.num_tokens
        known = tokens - request.num_pending
        if start == known - 1 and output:  # a decode row, by far the most frequent
            ids: tuple[int, ...] | None = (output[-1],)
        else:
            ids = request.known_ids(start, stop) if start < known else None
        request.num_computed_tokens = stop
        samples = stop == tokens and not request.submit.warm
        if samples:
            request.num_pending += 1
            request.num_tokens = tokens + 1
        return m.Row(request.rid, start, count, ids, samples)


@hookimpl
def register_hosts(register: Register) -> None:
    register("standard", SchedulerHost)
