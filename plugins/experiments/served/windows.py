"""Windows of time as the unit of an experiment on live traffic, and the report on them.

Requests of one window share a queue and prove nothing one by one; a window of each arm is a pair.  The A/A floor comes
from windows of the baseline next to each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from .... import __version__
from ...simulation.records import RequestRecord, Run, shifted
from ...traces.canonical import TraceRow
from ...workloads.scenario import Scenario, from_trace
from ..analysis import LevelAnalysis
from ..finding import finding
from ..measure import Summary, margins_of, summarise
from ..report import Report
from ..spec import ExperimentSpec

LEVEL = "live traffic"
#: Of the requests that came; above this share the dropped ones may well have been different.
MOST_DROPPED = 0.2


class Book:
    """Records by window and arm.  ``window`` numbers go up; a pair is what all arms have under one number."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self._spec = spec
        self._records: dict[tuple[int, str], list[RequestRecord]] = {}
        self._summaries: dict[tuple[int, str], Summary] = {}  # of closed windows, made once
        self.pairs: list[int] = []  # closed windows in which every arm has at least two requests
        self.spanning: Counter[str] = Counter()  # by arm at arrival: dropped, they ran under both
        self.cancelled: Counter[str] = Counter()  # by arm: their clients left
        self.num_kept = 0

    def keep(self, window: int, arm: str, record: RequestRecord) -> None:
        if record.reason == "cancelled":
            self.cancelled[arm] += 1
            return
        self._records.setdefault((window, arm), []).append(record)
        self.num_kept += 1

    def close(self, window: int) -> None:
        """Nothing more will come for this window.  One that is no pair is forgotten."""
        if all(len(self._records.get((window, arm), ())) > 1 for arm in self._spec.arms):
            self.pairs.append(window)
        else:
            for arm in self._spec.arms:
                self._records.pop((window, arm), None)

    def runs(self) -> dict[str, list[Summary]]:
        """A summary per pair and arm, the baseline first."""
        spec, pairs = self._spec, tuple(self.pairs)  # once: the event loop goes on closing windows
        return {arm: [self._summary(window, arm) for window in pairs] for arm in (spec.baseline, *spec.others)}

    def report(self, machine: Mapping[str, str], name: str) -> tuple[Report, dict[str, list[Summary]]]:
        """What the closed windows say, and the runs that its pictures are made of.  On any thread, one at a time."""
        spec, runs = self._spec, self.runs()
        base = runs[spec.baseline]
        analysis = LevelAnalysis(spec, spec.confidence, runs, base[1:], margins_of(spec, _scenario(())))
        level = analysis.result(LEVEL, None, cautions=self._cautions())
        work: dict[str, object] = {
            "title": f"{spec.live.mode}, windows of {spec.live.window_s:g} s",
            "name": LEVEL,
            "size": "",
            "requests": self.num_kept,
            "kv_tokens": "as configured",
            "block_size": "configured size",
            "scheduler": {},
            "trap": "",
        }
        report = Report(
            name=spec.name or name,
            question=spec.question,
            clock="live",
            baseline=spec.baseline,
            primary=spec.primary,
            confidence=spec.confidence,
            arms={arm: dict(tree) for arm, tree in spec.arms.items()},
            workload=work,
            machine={"clock": "live: the traffic of a server", "mode": spec.live.mode, **machine},
            capacity=None,
            levels=(level,),
            complete=True,
            correctness="clients' own requests: not compared",
            finding=finding((level,), spec.primary, spec.baseline),
            version=__version__,
        )
        return report, runs

    def _cautions(self) -> list[str]:
        out = []
        spanning, cancelled = dict(self.spanning), dict(self.cancelled)  # the event loop goes on counting
        dropped = sum(spanning.values())
        if dropped:
            counts = ", ".join(f"{arm} {count}" for arm, count in sorted(spanning.items()))
            share = dropped / max(1, dropped + self.num_kept)
            out.append(f"{dropped} requests ({share:.1%}) span a boundary of windows and are dropped: {counts}")
            if share > MOST_DROPPED:
                out.append("long requests span boundaries more often: with so many dropped, use longer windows")
        if cancelled:
            counts = ", ".join(f"{arm} {count}" for arm, count in sorted(cancelled.items()))
            out.append(f"cancelled by their clients and not measured: {counts}")
        return out

    def _summary(self, window: int, arm: str) -> Summary:
        if (window, arm) not in self._summaries:
            self._summaries[window, arm] = self._summarised(window, arm)
            del self._records[window, arm]
        return self._summaries[window, arm]

    def _summarised(self, window: int, arm: str) -> Summary:
        records = sorted(self._records[window, arm], key=lambda one: one.arrival_s)
        zero = records[0].arrival_s
        requests = tuple(
            msgspec.structs.replace(shifted(one, -zero), number=number) for number, one in enumerate(records)
        )
        run = Run(clock="live", requests=requests, steps=())
        rows = tuple(
            TraceRow(arrival_s=one.arrival_s, input_tokens=one.prompt_tokens, output_tokens=max(1, one.wanted_tokens))
            for one in requests
        )
        return summarise(run, _scenario(rows), self._spec, level=LEVEL, arm=arm, seed=window, role="pair")


def _scenario(rows: Sequence[TraceRow]) -> Scenario:
    return from_trace(tuple(rows), 0, 0, name=LEVEL, rate_per_s=math.inf)
