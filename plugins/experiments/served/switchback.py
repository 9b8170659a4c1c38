"""Switchback: the arms take turns in windows of time, in random order within each round.

A request belongs to the arm that was in force when it came.  One that ends in another window than it came in has run
under both arms: it is dropped from both, and counted.  A swap takes effect at the next step boundary.  After a failure
the engine is rebuilt with the policy it started with: what comes between that and the next swap belongs to no arm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import anyio
import structlog

from ....core.config import SchedulerConfig
from ....core.edge import KernelPort
from ....core.errors import MainspringError
from ....core.messages import Down, Emit, Message, Submit
from ...simulation.records import RequestRecord
from ..spec import Experiment
from .traffic_log import TrafficLog
from .windows import Book

log = structlog.get_logger("mainspring.experiment")
Swap = Callable[[SchedulerConfig], Mapping[str, Any]]


class Switchback(TrafficLog):
    """The edge that swaps and keeps the book.  ``changed`` is called after every round."""

    name = "switchback"
    consumes: tuple[type[Message], ...] = (Submit, Emit, Down)

    def __init__(
        self,
        experiment: Experiment,
        schedulers: Mapping[str, SchedulerConfig],
        swap: Swap,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(self._ended, self._came)
        self._spec, self._schedulers, self._swap, self._changed = experiment.spec, schedulers, swap, changed
        self.book = Book(self._spec)
        self._random = Random(f"{self._spec.name} {self._spec.seed_list[0]}")
        self._where: dict[str, tuple[int, int, str]] = {}  # rid -> round, turn, arm at its arrival
        self._now: tuple[int, int, str] | None = None
        self._rebuilt = False  # since the last swap: then the configured policy is in force, not the arm's

    def deliver(self, message: Message) -> None:
        if isinstance(message, Down):
            self._rebuilt = True
        else:
            super().deliver(message)

    async def run(self, port: KernelPort) -> None:
        """Take turns until cancelled; a swap that fails ends the experiment and leaves the engine as it is."""
        number = turn = 0
        while True:
            arms = list(self._spec.arms)
            self._random.shuffle(arms)
            for arm in arms:
                try:
                    self._swap(self._schedulers[arm])
                except MainspringError as error:
                    log.error("experiment_ended", reason=str(error))
                    self._now = None
                    await anyio.sleep_forever()
                turn += 1
                self._now, self._rebuilt = (number, turn, arm), False
                log.info("experiment_window", arm=arm, round=number, seconds=self._spec.live.window_s)
                await anyio.sleep(self._spec.live.window_s)
            self._now = None  # what comes between two rounds would come before the swap
            self.book.close(number)
            number += 1
            self._changed()

    def _came(self, rid: str, now: float) -> None:
        if self._now is not None and not self._rebuilt:
            self._where[rid] = self._now

    def _ended(self, record: RequestRecord, now: float) -> None:
        place = self._where.pop(record.rid, None)
        if place is None:
            return
        number, _, arm = place
        if self._now != place:
            self.book.spanning[arm] += 1
        else:
            self.book.keep(number, arm, record)
