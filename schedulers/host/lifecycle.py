"""The requests that are here: how each gets in, runs, is put back, is paused and ends.

Every accepted request ends exactly once, whatever happens: ``_end`` is the only way out.  What a record goes through is
told to the policy, and to its shadow, as events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import structlog

from ...core import messages as m
from ...core.clock import Clock
from ...core.config import SchedulerConfig
from ...core.errors import ClientError, EngineFault
from ...core.policy import Allocator, Event, ExecutorInfo, PolicyContext, Sampler, SchedulerView
from ...core.request import Status
from .arrivals import inherit, validate
from .build import make_policy
from .guard import Guard, Watch
from .moments import Moments
from .planner import Planner
from .record import Request
from .shadow import Shadow
from .step_time import StepTime

log = structlog.get_logger("mainspring.scheduler")
MAX_DEPTH = 2  # a swap, or a step longer than expected, may lower the depth while two steps are in flight
EventKind = Literal["arrived", "started", "scheduled", "preempted", "tokens", "finished"]


class Flight(NamedTuple):
    """A step that was planned and is not booked yet."""

    rows: tuple[m.Row, ...]
    num_tokens: int


class Lifecycle:
    """The records and their moves, without the steps."""

    def __init__(
        self,
        options: None,
        config: SchedulerConfig,
        make: Callable[..., Any],
        allocator: Allocator,
        sampler: Sampler,
        info: ExecutorInfo,
        clock: Clock | None = None,
        watch: Watch | None = None,
    ) -> None:
        """``make(slot, use, options, *arguments)`` builds plugins.  ``clock`` puts the policy under a time budget
        (``serve``); tests and simulation give none.  ``watch`` ends a call into the policy that never returns.
        """
        self.config, self.allocator, self.sampler, self.info = config, allocator, sampler, info
        self._make, self._clock, self._watch = make, clock, watch
        self.planner = Planner(self._new_guard(config), config.max_bypass)
        self.records: dict[str, Request] = {}
        self.running: dict[str, Request] = {}  # in order of admission
        self.step = 0
        self.step_time = StepTime()
        self.tenant_tokens: Counter[str] = Counter()
        self.tenant_tokens_view = MappingProxyType(self.tenant_tokens)
        self.counters: Counter[str] = Counter()
        self.draining, self.admitting = False, True
        self._seq = 0
        self._in_flight: dict[int, Flight] = {}
        self._released: list[str] = []
        self._preempted: list[str] = []
        self._emit: list[m.EmitRow] = []
        self._deadlines, self._pauses = Moments(), Moments()
        self.shadow = self._new_shadow(config, 0.0)

    def _new_guard(self, config: SchedulerConfig, policy: Any = None) -> Guard:
        """``policy`` names one (use, options, wrap, seed) if it is not that of ``config``."""
        pool, policy = self.allocator, policy or config
        context = PolicyContext(
            config.token_budget, config.max_running, pool.num_blocks, pool.block_size, Random(policy.seed)
        )
        return Guard(make_policy(self._make, policy, context), policy.use, self._clock, watch=self._watch)

    def _new_shadow(self, config: SchedulerConfig, now: float) -> Shadow | None:
        """The second policy, if the table names one: it is asked too, and its answers go to the journal."""
        policy = getattr(config, "shadow", None)
        if policy is None or not policy.use:
            return None
        requests = [request.view for request in self.records.values()]
        return Shadow(self._new_guard(config, policy), config.max_bypass, requests, now)

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.records) - len(self.running)

    @property
    def _listens(self) -> bool:
        return self.planner.listens or (self.shadow is not None and self.shadow.planner.listens)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    # --- the doors -------------------------------------------------------------------------------------------------

    def _submit(self, message: m.Submit, now: float) -> None:
        try:
            message = inherit(message, self.running)
            self._refuse(message.rid)
            validate(message, self.info, self.allocator, self.sampler, now)
            length = 1 if message.warm else message.forced_length or message.sampling.max_tokens
            pool_tokens = self.allocator.num_blocks * self.allocator.block_size
            limit = min(len(message.prompt_ids) + length, self.info.max_context, pool_tokens)
            request = Request(message, self._seq, now, limit)
            if reason := self.planner.admit(request.view, SchedulerView(self, now)):
                raise ClientError("overloaded", f"refused by policy {self.planner.name}: {reason}")
        except ClientError as error:
            self.counters["refused"] += 1
            self._emit.append(m.refusal(message, m.Failure(error.code, error.message, error.param), now))
            return
        if self.shadow:  # asked before the request is there, as the policy in force was
            self.shadow.admit(request.view, SchedulerView(self, now))
        if message.parent is not None and (fork := getattr(self.allocator, "fork", None)):
            fork(message.parent, message.rid)
        self._seq += 1
        self.records[message.rid] = request
        if message.deadline is not None:
            self._deadlines.add(message.deadline, message.rid)
        self._emit.append(m.EmitRow(message.rid))
        self._event("arrived", request, 0, now)

    def _refuse(self, rid: str) -> None:
        """Raises ClientError if nobody, or not this rid, can be taken in now."""
        flying = (row.rid for flight in self._in_flight.values() for row in flight.rows)
        if rid in self.records or rid in self._released or rid in flying:
            raise ClientError("duplicate_id", f"request {rid!r} is still running", "id")
        if self.draining:
            raise ClientError("draining", "the server is shutting down")
        if self.num_waiting >= self.config.max_waiting:
            raise ClientError("queue_full", f"{self.num_waiting} requests wait, the limit is {self.config.max_waiting}")

    def _end(
        self,
        request: Request,
        reason: m.FinishReason,
        now: float,
        tokens: tuple[int, ...] = (),
        stop: str | int | None = None,
        failure: m.Failure | None = None,
    ) -> None:
        """The only way out: forget the record, release its blocks with the next plan, emit the one terminal."""
        self.running.pop(request.rid, None)
        submit = request.submit
        if request.first_scheduled is not None or submit.parent is not None:
            self._released.append(request.rid)
        if submit.lease_s > 0 and (lease := getattr(self.allocator, "lease", None)):
            lease(submit.prompt_ids, submit.cache_salt, now + submit.lease_s)
        request.move(Status.FINISHED)
        del self.records[request.rid]
        self.counters[f"finished_{reason}"] += 1
        finish = m.Finish(reason, request.usage(), request.timing(now), stop, failure, request.num_preemptions)
        self._emit.append(m.EmitRow(request.rid, tokens, finish))
        self._event("finished", request, 0, now)

    def _fail(self, request: Request, why: str, now: float, code: str = "server_error") -> None:
        failure = m.Failure(code, f"request {request.rid}: {why}")
        self._end(request, m.FinishReason.ERROR, now, failure=failure)

    def _cancel(self, message: m.Cancel, now: float) -> None:
        if request := self.records.get(message.rid):
            self._end(request, message.reason, now)

    def _pause(self, message: m.Pause | m.Resume, now: float) -> list[m.Message]:
        """A paused request gets no tokens; one that stays so for long gives its blocks to the others."""
        until, out = now + self.config.pause_hold_s, list[m.Message]()
        for request in (self.records[rid] for rid in message.rids if rid in self.records):
            if isinstance(message, m.Resume):
                request.patience = None
            elif request.patience is None:
                request.patience = until
                self._pauses.add(until, request.rid)
                out = [m.Alarm(until)]
        return out

    def _stop(self, message: m.Stop, now: float) -> None:
        for rid, kept, string in message.rows:
            if request := self.records.get(rid):
                beyond = max(0, len(request.output_ids) - kept)
                self.counters["wasted_tokens"] += beyond
                request.num_tokens -= beyond
                del request.output_ids[kept:]
                self._end(request, m.FinishReason.STOP, now, stop=string)

    def _control(self, message: m.Control, now: float) -> None:
        if message.action == "drain":
            self.draining = True
        elif message.action in ("hold", "release"):
            self.admitting = message.action == "release"
        elif message.action != "tick":
            raise EngineFault(f"unknown control action {message.action!r}")
        self._expire(now)

    def _expire(self, now: float) -> None:
        for _, rid in self._deadlines.due(now, self.records, len(self.records)):
            self._end(self.records[rid], m.FinishReason.DEADLINE, now)
        for moment, rid in self._pauses.due(now, self.running, len(self.running)):
            if self.running[rid].patience == moment:  # and not of an earlier pause
                self.counters["paused_too_long"] += 1
                self._preempt(self.running[rid], now)

    def abort_all(self, failure: m.Failure, now: float) -> m.Emit:
        """End everything with ``failure``: the executor is gone and so is the KV.  The host is dropped afterwards, and
        its state may be what failed: whatever happens, each request gets its one terminal."""
        for request in list(self.records.values()):
            try:
                self._end(request, m.FinishReason.ERROR, now, failure=failure)
            except Exception:
                log.exception("end_failed", rid=request.rid)
                if request.rid not in {row.rid for row in self._emit}:
                    finish = m.Finish(m.FinishReason.ERROR, request.usage(), request.timing(now), failure=failure)
                    self._emit.append(m.EmitRow(request.rid, (), finish))
        rows, self._emit = tuple(self._emit), []
        return m.Emit(-1, rows)

    # --- in and out of the running set ---------------------------------------------------------------------------

    def _start(self, request: Request, cached: int, now: float) -> m.Started:
        """Into the running set, with ``cached`` tokens of its prefix already computed."""
        submit = request.submit
        if request.first_scheduled is None:
            request.first_scheduled, request.num_cached_tokens = now, min(cached, request.num_prompt_tokens)
        request.move(Status.RUNNING)
        self.counters["recomputed_tokens"] += max(0, request.num_lost_tokens - cached)
        request.num_lost_tokens, request.num_computed_tokens = 0, cached
        self.running[request.rid] = request
        self._event("started", request, cached, now)
        ids = request.known_ids(0, request.num_known_tokens)
        prompt = request.num_prompt_tokens
        return m.Started(
            request.rid, ids, prompt, cached, submit.sampling, submit.cache_salt, submit.read_cache, submit.priority
        )

    def _preempt(self, request: Request, now: float) -> None:
        """Out of the running set: its blocks go, its tokens stay, it waits again."""
        del self.running[request.rid]
        request.move(Status.PREEMPTED)
        self._preempted.append(request.rid)
        self.counters["preemptions"] += 1
        request.num_lost_tokens, request.num_computed_tokens = request.num_computed_tokens, 0
        request.num_preemptions += 1
        self._event("preempted", request, 0, now)

    def _event(self, kind: EventKind, request: Request, num_tokens: int, now: float) -> None:
        event = Event(kind, request.view, num_tokens, now)
        self.planner.on_event(event)
        if self.shadow:
            self.shadow.on_event(event)

    def check(self) -> None:
        """Conservation: every record stands in exactly one place, and nothing of the ended ones is left."""
        assert self.running.keys() <= self.records.keys()
        for request in self.records.values():
            assert (request.status is Status.RUNNING) == (request.rid in self.running), request.view
            assert 0 <= request.num_computed_tokens <= request.num_tokens <= request.limit, request.view
            assert request.num_pending == request.num_tokens - request.num_known_tokens >= 0, request.view
        assert len(self._in_flight) <= MAX_DEPTH

    def stats(self) -> Mapping[str, float]:
        now = {"running": self.num_running, "waiting": self.num_waiting, "in_flight": self.num_in_flight}
        return {**now, **self.counters, **self.planner.stats(), **(self.shadow.stats() if self.shadow else {})}
