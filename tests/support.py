"""Builders that several test folders share: a simulated engine on the fake executor, and what came out of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.messages import (
    Cancel,
    Emit,
    Finish,
    Message,
    Pause,
    Resume,
    SamplingParams,
    StepGrant,
    StepLaunch,
    StepPlan,
    StepResult,
    Submit,
)
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.schedulers.host.standard import SchedulerHost


def one_second(launch: StepLaunch) -> float:
    """Every step takes one virtual second, so that step numbers and times are the same thing."""
    return 1.0


def config(block_size: int = 4, allocator: str = "paged", **scheduler: Any) -> Config:
    """Paranoid configuration of the given scheduler table."""
    return Config(
        paranoid=True,
        scheduler=SchedulerConfig(**scheduler),
        allocator=AllocatorConfig(use=allocator, block_size=block_size),
    )


def submit(rid: str, prompt: int | tuple[int, ...], max_tokens: int = 20, **fields: Any) -> Submit:
    """A request of ``prompt`` tokens (or exactly these), greedy, that no end id stops."""
    ids = tuple(range(10, 10 + prompt)) if isinstance(prompt, int) else prompt
    sampling = fields.pop("sampling", SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    return Submit(rid, ids, sampling, **fields)


def disturb(it: Lab, rng: Random, rid: str, moment: float, early_s: float, late_s: float, pauses: float) -> None:
    """Of a fifth of the requests a cancel and of ``pauses`` a pause, at most ``early_s`` after ``moment``; paused ones
    are resumed by ``late_s`` after it."""
    if rng.random() < 0.2:
        it.sim.at(moment + rng.uniform(0, early_s), Cancel(rid))
    if rng.random() < pauses:
        it.sim.at(moment + rng.uniform(0, early_s), Pause((rid,)))
        it.sim.at(moment + rng.uniform(early_s, late_s), Resume((rid,)))


@dataclass
class Flights:
    """A tap that sees for each step, as it is planned, the moment and how many steps are in flight with it."""

    seen: list[tuple[float, int]] = field(default_factory=list)
    num_now: int = 0

    def tap(self, message: Message, now: float) -> None:
        if isinstance(message, StepPlan) and message.rows:
            self.num_now += 1
            self.seen.append((now, self.num_now))
        elif isinstance(message, StepResult):
            self.num_now -= 1

    @property
    def counts(self) -> list[int]:
        return [count for _, count in self.seen]


@dataclass
class Lab:
    """A simulated engine with everything it said."""

    sim: Simulator
    executor: FakeExecutor
    log: list[Message] = field(default_factory=list)

    @property
    def host(self) -> SchedulerHost:
        host = self.sim.actors.host
        assert isinstance(host, SchedulerHost)
        return host

    @property
    def plans(self) -> list[StepPlan]:
        return [message for message in self.log if isinstance(message, StepPlan)]

    @property
    def grants(self) -> list[StepGrant]:
        return [message for message in self.log if isinstance(message, StepGrant)]

    def batches(self) -> list[str]:
        """Each step as text: ``A 8 | B 3*`` with a star for rows that sample."""
        return [
            " ".join(f"{row.rid}{row.count}{'*' if row.samples else ''}" for row in plan.rows)
            for plan in self.plans
            if plan.rows
        ]

    def outputs(self) -> dict[str, list[int]]:
        """Ids emitted per request, in order."""
        out: dict[str, list[int]] = defaultdict(list)
        for emit in self.emits():
            for row in emit.rows:
                out[row.rid] += row.token_ids
        return out

    def ends(self) -> dict[str, Finish]:
        """The terminal of each request; fails on a second one and on tokens after it."""
        ends: dict[str, Finish] = {}
        for emit in self.emits():
            for row in emit.rows:
                assert row.rid not in ends, f"{row.rid}: news after its end"
                if row.finish is not None:
                    ends[row.rid] = row.finish
        return ends

    def emits(self) -> list[Emit]:
        return self.sim.emitted

    def assert_empty(self) -> None:
        """Nothing is left of anybody: records, queues, blocks, remembered ids."""
        assert not self.host.records
        assert not self.host.running
        assert not self.host.num_in_flight
        assert not len(self.host.planner._waiting)
        assert self.sim.actors.allocator.free_blocks == self.sim.actors.allocator.num_blocks
        assert self.executor.num_remembered == 0
        self.sim.actors.check()


def lab(
    settings: Config | None = None,
    num_blocks: int = 64,
    step_time: Callable[[StepLaunch], float] = one_second,
    **executor: Any,
) -> Lab:
    """A simulated engine; further keywords go to the fake executor."""
    settings = settings or config()
    fake = FakeExecutor(num_blocks, settings.allocator.block_size, **executor)
    log: list[Message] = []
    return Lab(Simulator(settings, fake, step_time, taps=[lambda message, now: log.append(message)]), fake, log)
