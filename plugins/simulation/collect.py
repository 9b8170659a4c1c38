"""Turns what an engine says into records, the same for simulated and live runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...core.messages import Emit, Finish, StepResult
from ..step_time.features import Features
from ..traces.canonical import TraceRow
from .records import RequestRecord, Run, StepRecord, number_of, rid_of


class Collector:
    """Give it arrivals, emits and steps; ``run`` makes the record.  Rids are those of ``rid_of``."""

    def __init__(self, rows: Sequence[TraceRow]) -> None:
        self._rows = rows
        self._arrived: dict[int, tuple[float, float]] = {}
        self._times: dict[str, list[float]] = {}  # by rid: the hot loop has nothing else
        self._finishes: dict[int, tuple[float, Finish]] = {}
        self._steps: list[StepRecord] = []
        self._seen_at, self._in_system_s = 0.0, 0.0

    def arrived(self, number: int, arrival_s: float, submitted_s: float) -> None:
        """Row ``number`` was due at ``arrival_s`` and handed over at ``submitted_s``."""
        self._arrived[number] = arrival_s, submitted_s
        self._times[rid_of(number)] = []

    def count(self, now: float, live: int) -> None:
        """The host has had ``live`` requests since the last call: call it before every message is handled."""
        if now != self._seen_at:
            self._in_system_s += live * (now - self._seen_at)
            self._seen_at = now

    def emit(self, emit: Emit, now: float) -> list[int]:
        """Take news in; returns the rows that have ended with it."""
        times = self._times
        ended: list[int] = []
        for row in emit.rows:
            count = len(row.token_ids)
            if count == 1:
                times[row.rid].append(now)
            elif count:
                times[row.rid] += [now] * count
            if row.finish is not None:
                number = number_of(row.rid)
                self._finishes[number] = now, row.finish
                ended.append(number)
        return ended

    def step(
        self, result: StepResult, features: Features, batch: int, running: int, waiting: int, policy_s: float = 0.0
    ) -> None:
        """Take in a step of ``batch`` rows; ``running`` and ``waiting`` requests were there when it was launched."""
        prefill, decode, kv, attention = features
        seconds = result.finished - result.launched
        self._steps.append(
            StepRecord(
                result.step,
                result.launched,
                seconds,
                int(prefill),
                int(decode),
                int(kv),
                attention,
                batch,
                running,
                waiting,
                policy_s,
            )
        )

    def run(self, clock: str, counters: Mapping[str, float]) -> Run:
        """Everything so far.  Rows that never arrived have no times."""
        requests = tuple(self._request(number, row) for number, row in enumerate(self._rows))
        return Run(
            clock=clock,
            requests=requests,
            steps=tuple(self._steps),
            in_system_s=self._in_system_s,
            counters={name: float(count) for name, count in counters.items()},
        )

    def _request(self, number: int, row: TraceRow) -> RequestRecord:
        arrival, submitted = self._arrived.get(number, (row.arrival_s, None))
        at, finish = self._finishes.get(number, (None, None))
        rid = rid_of(number)
        times = tuple(self._times.get(rid, ()))
        return RequestRecord(
            number=number,
            rid=rid,
            arrival_s=arrival,
            submitted_s=submitted,
            scheduled_s=finish.timing.scheduled if finish else None,
            first_token_s=times[0] if times else None,
            finished_s=at,
            token_times=times,
            prompt_tokens=row.input_tokens,
            cached_tokens=finish.usage.cached if finish else 0,
            wanted_tokens=row.output_tokens,
            tenant=row.tenant,
            session=row.session,
            slo=row.slo,
            priority=row.priority,
            preemptions=finish.num_preemptions if finish else 0,
            reason=finish.reason.value if finish else "",
            code=finish.failure.code if finish and finish.failure else "",
        )
