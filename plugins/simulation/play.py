"""One scenario in virtual time: the real router, host, policy, allocator; a prepared model; a fitted step time."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from ...core.config import Config
from ...core.messages import Emit, Message, StepLaunch, StepResult
from ...core.registry import Registry
from ...core.router import Tap
from ..simulator import Simulator
from ..step_time.features import Features, features_of
from ..step_time.policy_cost import PolicyCost
from ..workloads.draws import generator
from ..workloads.scenario import Scenario
from .collect import Collector
from .records import Run, rid_of
from .scripted_model import ScriptedModel
from .traffic import Traffic

VOCAB = 50_000
StepSeconds = Callable[[Features], float]


def configure(config: Config, scenario: Scenario) -> Config:
    """``config`` with the engine limits and the block size of the scenario, as an arm starts from."""
    scheduler = msgspec.structs.replace(config.scheduler, **{"max_waiting": 1 << 20, **scenario.scheduler})
    allocator = msgspec.structs.replace(
        config.allocator, block_size=scenario.block_size, num_blocks=scenario.num_blocks
    )
    return msgspec.structs.replace(config, scheduler=scheduler, allocator=allocator)


def play(
    config: Config,
    scenario: Scenario,
    step_time: StepSeconds,
    seed: int = 0,
    *,
    policy_cost: PolicyCost | None = None,
    noise_sigma: float = 0.0,
    noise_seed: int | None = None,
    known_lengths: bool = False,
    registry: Registry | None = None,
    taps: Sequence[Tap] = (),
    until_s: float = math.inf,
) -> Run:
    """Play ``scenario`` on the engine of ``config`` (see :func:`configure`) and return what happened.

    ``step_time`` gives the seconds of a step's features.  ``policy_cost`` is charged before each launch; with two steps
    in flight it hides behind the one that runs.  ``noise_sigma`` multiplies each step by lognormal noise of median 1,
    drawn from ``noise_seed`` (or ``seed``) in order of steps.  True output lengths are hidden from policies unless
    ``known_lengths``.  The same arguments give the same bytes.
    """
    player = Player(
        config, scenario, step_time, seed, policy_cost, noise_sigma, noise_seed, known_lengths, registry, taps
    )
    with _few_collections():
        return player.run(until_s)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Messages are freed by their reference counts; looking for cycles among millions of them is a sixth of a run."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Player:
    """A run in progress."""

    def __init__(
        self,
        config: Config,
        scenario: Scenario,
        step_time: StepSeconds,
        seed: int,
        policy_cost: PolicyCost | None,
        noise_sigma: float,
        noise_seed: int | None,
        known_lengths: bool,
        registry: Registry | None,
        taps: Sequence[Tap],
    ) -> None:
        self._traffic = Traffic(scenario, seed, VOCAB, known_lengths)
        longest = max((row.input_tokens + row.output_tokens for row in scenario.rows), default=1)
        self._model = ScriptedModel(config.allocator.num_blocks or scenario.num_blocks, VOCAB, longest + 1)
        self._step_time, self._cost, self._sigma = step_time, policy_cost, noise_sigma
        self._policy_s = 0.0  # of the decision behind the present launch
        self._noise = generator(seed if noise_seed is None else noise_seed, "step noise")
        self._features: dict[int, tuple[Features, int, int, int, float]] = {}
        self._arrivals = [(scenario.rows[number].arrival_s, number) for number in self._traffic.roots]
        heapify(self._arrivals)
        self._collect = Collector(scenario.rows)
        self.simulator = Simulator(
            config, self._model, self._seconds, registry, (self._see, *taps), self._on_emit, decision_s=self._decision_s
        )
        self._host: Any = self.simulator.actors.host

    def run(self, until_s: float) -> Run:
        """Play to the end, or up to ``until_s`` virtual seconds."""
        simulator, arrivals = self.simulator, self._arrivals
        while (moment := min(simulator.next_moment, arrivals[0][0] if arrivals else math.inf)) <= until_s:
            if arrivals and arrivals[0][0] == moment:
                self._arrive(moment)
            elif not simulator.run(max_events=1):
                break
        kv = {f"kv_{key}": value for key, value in simulator.actors.allocator.stats().items()}
        return self._collect.run("sim", {**self._host.stats(), **kv})

    def _arrive(self, moment: float) -> None:
        """All that come at one moment are seen by one plan."""
        submits = []
        while self._arrivals and self._arrivals[0][0] == moment:
            _, number = heappop(self._arrivals)
            submit = self._traffic.submit(number, moment)
            self._model.expect(submit.rid, len(submit.prompt_ids), self._traffic.answer(number))
            self._collect.arrived(number, moment, moment)
            submits.append(submit)
        self.simulator.post_at(moment, *submits)

    def _seconds(self, launch: StepLaunch) -> float:
        features = features_of(launch.rows, launch.padding)
        host, batch = self._host, len(launch.rows)
        self._features[launch.step] = features, batch, host.num_running, host.num_waiting, self._policy_s
        seconds = self._step_time(features)
        if self._sigma:
            seconds *= math.exp(self._sigma * self._noise.standard_normal())
        return seconds

    def _decision_s(self) -> float:
        if self._cost:
            self._policy_s = self._cost.seconds(self._host.num_running, self._host.num_waiting)
        return self._policy_s

    def _see(self, message: Message, now: float) -> None:
        self._collect.count(now, len(self._host.records))
        if type(message) is StepResult:
            self._collect.step(message, *self._features.pop(message.step))

    def _on_emit(self, emit: Emit, now: float) -> None:
        for number in self._collect.emit(emit, now):
            self._model.forget(rid_of(number))
            for arrival, child in self._traffic.ended(number, now):
                heappush(self._arrivals, (arrival, child))
