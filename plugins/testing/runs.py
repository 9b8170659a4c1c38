"""Plays a scenario through the real host and allocator in virtual time, and keeps everything that can be judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...core.config import AllocatorConfig, Config, SchedulerConfig
from ...core.errors import ConfigError
from ...core.messages import Emit, Finish, Message, StepPlan, Submit
from ...core.policy import SchedulerPolicy
from ..simulator import LinearStepTime, Simulator
from ..watchdog import Watchdog
from .fake_executor import FakeExecutor
from .recorder import Answer, KitRegistry, Recorder, Refusal
from .scenarios import Scenario
from .strict import Touch

#: Seconds of real time after which a hook counts as never returning.
HANGS_S = 2.0


@dataclass(frozen=True)
class Subject:
    """The policy on trial: a registered name, ``package.module:Class`` or a class; its options and wrappers."""

    use: str | type[SchedulerPolicy]
    options: Mapping[str, Any] = field(default_factory=dict)
    wrap: tuple[str | dict[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return self.use if isinstance(self.use, str) else self.use.__name__

    @property
    def offer(self) -> type[SchedulerPolicy] | None:
        """The class, if it is not found by name."""
        return None if isinstance(self.use, str) else self.use

    def config(self, scenario: Scenario) -> Config:
        """The engine of ``scenario`` with this policy in its slot."""
        scheduler = SchedulerConfig(
            use=self.name,
            options=dict(self.options),
            wrap=self.wrap,
            token_budget=scenario.token_budget,
            max_running=scenario.max_running,
            depth=scenario.depth,
            max_bypass=scenario.max_bypass,
            watermark=scenario.watermark,
        )
        return Config(paranoid=True, scheduler=scheduler, allocator=AllocatorConfig(block_size=scenario.block_size))


@dataclass(frozen=True)
class Run:
    """Everything that happened.  ``log`` are all messages with their moments, in order."""

    subject: Subject
    scenario: Scenario
    log: tuple[tuple[float, Message], ...]
    answers: tuple[Answer, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    touches: tuple[Touch, ...] = ()
    hung: str = ""
    keeps_views: bool = False
    crash: str = ""
    ended: bool = True  # all events were played
    free_blocks: int = 0
    left: tuple[str, ...] = ()  # rids that the host still knows

    @cached_property
    def plans(self) -> list[tuple[float, StepPlan]]:
        return [(now, message) for now, message in self.log if isinstance(message, StepPlan)]

    @cached_property
    def submits(self) -> dict[str, tuple[float, Submit]]:
        return {message.rid: (now, message) for now, message in self.log if isinstance(message, Submit)}

    @cached_property
    def outputs(self) -> dict[str, list[int]]:
        out: defaultdict[str, list[int]] = defaultdict(list)
        for row in self._rows():
            out[row.rid] += row.token_ids
        return out

    @cached_property
    def finishes(self) -> dict[str, list[Finish]]:
        out: defaultdict[str, list[Finish]] = defaultdict(list)
        for row in self._rows():
            if row.finish:
                out[row.rid].append(row.finish)
        return out

    @cached_property
    def starts(self) -> dict[str, tuple[float, int]]:
        """rid -> (moment, step) of its first admission, in order."""
        out: dict[str, tuple[float, int]] = {}
        for now, plan in self.plans:
            for started in plan.started:
                out.setdefault(started.rid, (now, plan.step))
        return out

    @cached_property
    def ended_at(self) -> dict[str, float]:
        return {row.rid: now for now, e in self.log if isinstance(e, Emit) for row in e.rows if row.finish}

    def _rows(self) -> Iterator[Any]:
        return (row for _, message in self.log if isinstance(message, Emit) for row in message.rows)

    def decisions(self) -> list[tuple[Any, ...]]:
        """What was decided, step by step: (moment, step, rows, preempted, padding)."""
        return [
            (
                round(now, 9),
                plan.step,
                [(row.rid, row.count) for row in plan.rows],
                list(plan.preempted),
                list(plan.padding),
            )
            for now, plan in self.plans
        ]


class Player:
    """A scenario being played; ``recorded=False`` measures the policy without the kit in between."""

    def __init__(
        self, subject: Subject, scenario: Scenario, watchdog: Watchdog | None = None, recorded: bool = True
    ) -> None:
        self.subject, self.scenario = subject, scenario
        self.recorder = Recorder() if recorded else None
        self.log: list[tuple[float, Message]] = []
        self.crash = ""
        self.played = 0
        self.simulator = Simulator(
            subject.config(scenario),
            FakeExecutor(scenario.num_blocks, scenario.block_size, max_context=scenario.max_context),
            LinearStepTime(scenario.step_s, scenario.token_s),
            KitRegistry(self.recorder, watchdog, subject.offer),
            taps=[lambda message, now: self.log.append((now, message))],
        )
        for moment, message in scenario.actions:
            self.simulator.at(moment, message)

    def run(self, until: float = float("inf")) -> None:
        """Play on up to ``until``.  What the kernel itself trips over is kept as ``crash``."""
        if self.crash:
            return
        try:
            self.played += self.simulator.run(until, self.scenario.max_events - self.played)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  the run is judged by what stopped it
            self.crash = f"{type(error).__name__}: {error}"

    def result(self) -> Run:
        """The record so far."""
        host: Any = self.simulator.actors.host
        seen = self.recorder or Recorder()
        return Run(
            self.subject,
            self.scenario,
            tuple(self.log),
            tuple(seen.answers),
            tuple(seen.refusals),
            tuple(seen.touches),
            seen.hung,
            seen.keeps_views,
            self.crash,
            self.played < self.scenario.max_events,
            self.simulator.actors.allocator.free_blocks,
            tuple(host.records),
        )


def play(subject: Subject, scenario: Scenario, watchdog: Watchdog | None = None) -> Run:
    """Play ``scenario`` to its end.  Raises ConfigError or PluginError if the policy cannot be used at all."""
    player = Player(subject, scenario, watchdog)
    player.run()
    return player.result()
