"""The same router and actors under a heap and a virtual clock: a second of traffic costs milliseconds.

The executor is a fake (or anything that returns results at once); how long a step takes is a function of its launch.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from ..core.config import Config
from ..core.kernel import Actors
from ..core.messages import Alarm, Control, Down, Emit, Message, Note, StepLaunch
from ..core.policy import Executor
from ..core.registry import Registry
from ..core.router import Router, Routes, Tap
from .executors.overlap import begin, result_of
from .manual_clock import ManualClock

StepTime = Callable[[StepLaunch], float]


@dataclass(frozen=True, slots=True)
class LinearStepTime:
    """Seconds of a step: ``base_s`` plus ``per_token_s`` for each token computed, dummy rows included."""

    base_s: float = 0.010
    per_token_s: float = 0.0001

    def __call__(self, launch: StepLaunch) -> float:
        return self.base_s + self.per_token_s * (sum(row.count for row in launch.rows) + sum(launch.padding))


class Simulator:
    """One engine in virtual time.  ``at`` schedules arrivals, ``run`` plays them; everything is exactly repeatable."""

    def __init__(
        self,
        config: Config,
        executor: Executor,
        step_time: StepTime | None = None,
        registry: Registry | None = None,
        taps: Sequence[Tap] = (),
        on_emit: Callable[[Emit, float], None] | None = None,
        sampler: str = "scripted",
        decision_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``sampler`` names the one in use: ``scripted`` for fakes, ``standard`` for an executor with logits.
        ``decision_s``, asked at each launch, are the seconds that planning the step took: it starts so much later.
        """
        config = msgspec.structs.replace(config, sampler=msgspec.structs.replace(config.sampler, use=sampler))
        self.config, self.clock, self.executor = config, ManualClock(), executor
        self.actors = Actors(config, registry or Registry(), executor.load(lambda _line: None))
        self.emitted: list[Emit] = []
        self._on_emit = on_emit or (lambda emit, _now: self.emitted.append(emit))
        self._step_time, self._decision_s = step_time or LinearStepTime(), decision_s
        self._free_at = 0.0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Callable[[], tuple[Message, ...]]]] = []
        routes: Routes = {**self.actors.routes(self._launch, self._alarm), Emit: (self._emit,), Note: (), Down: ()}
        self.router = Router(self.clock, routes, taps)

    def at(self, moment: float, *messages: Message) -> None:
        """Post ``messages`` together at ``moment`` (virtual seconds)."""
        self._at(moment, lambda: messages)

    def _at(self, moment: float, messages: Callable[[], tuple[Message, ...]]) -> None:
        heapq.heappush(self._heap, (moment, next(self._order), messages))

    def post(self, *messages: Message) -> None:
        """Post at the present moment."""
        self.router.post(*messages)

    @property
    def next_moment(self) -> float:
        """When the next event is due; infinite if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def post_at(self, moment: float, *messages: Message) -> None:
        """Go to ``moment``, before whatever else is due then, and post."""
        self.clock.advance_to(moment)
        self.router.post(*messages)
        if self.config.paranoid:
            self.actors.check()

    def run(self, until: float = float("inf"), max_events: int | None = None) -> int:
        """Play events up to ``until``; returns how many were played."""
        played = 0
        while self._heap and self._heap[0][0] <= until and (max_events is None or played < max_events):
            moment, _, messages = heapq.heappop(self._heap)
            self.post_at(moment, *messages())
            played += 1
        return played

    def _launch(self, message: Message, now: float) -> None:
        assert isinstance(message, StepLaunch)
        begun = begin(self.executor, message, self.actors.sampler.run)
        if not message.rows:
            return
        launched = max(now + self._decision_s(), self._free_at)  # with depth 2 a step waits for the one before it
        finished = self._free_at = launched + self._step_time(message)
        moments = {"launched": launched, "finished": finished}
        self._at(finished, lambda: (msgspec.structs.replace(result_of(begun), **moments),))

    def _alarm(self, message: Message, now: float) -> None:
        assert isinstance(message, Alarm)
        self.at(message.at, Control("tick"))

    def _emit(self, message: Message, now: float) -> None:
        assert isinstance(message, Emit)
        self._on_emit(message, now)
