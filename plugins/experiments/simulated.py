"""One run of an arm in virtual time."""

from __future__ import annotations

import hashlib
import math
import time
from typing import NamedTuple

import msgspec

from ...core.errors import ConfigError
from ...core.messages import Message, StepLaunch
from ...core.registry import PluginInfo, Registry
from ..simulation.play import play
from ..simulation.records import Run
from ..step_time import files
from ..step_time.features import Features
from ..step_time.files import StepTimeFile
from ..workloads.metrics import Alone
from ..workloads.scenario import Scenario
from .arms import Arm
from .spec import Experiment


class Played(NamedTuple):
    """A run, its output ids by row (empty if no model made them), the real seconds that it took, and by step when the
    host counted its requests, which with a step in flight is before the next one starts."""

    run: Run
    outputs: dict[int, list[int]]
    took_s: float
    counted_at: dict[int, float]


class KnownPlugins(Registry):
    """A registry that looks for each plugin once: a run of a second must not search the disk for half of it."""

    def resolve(self, slot: str, use: str) -> PluginInfo:
        return self.plugins.get((slot, use)) or super().resolve(slot, use)


class SimulatedClock:
    """Plays scenarios with fitted step times; exactly repeatable, whatever the machine does meanwhile."""

    clock = "sim"

    def __init__(self, experiment: Experiment) -> None:
        """Raises ConfigError for a file of coefficients that cannot be had."""
        self._spec = experiment.spec
        self._registry = KnownPlugins()
        name = self._spec.step_time
        beside = experiment.path.parent / name
        try:
            self.machine: StepTimeFile = files.load(beside if name.endswith(".toml") and beside.exists() else name)
        except ConfigError as error:
            raise experiment.error(f"step_time = {name!r}: {error}") from error
        self.content = msgspec.json.encode(self.machine)
        self.description = {
            "clock": "sim: virtual time, step times from fitted coefficients",
            "step_time": name,
            "machine": self.machine.machine,
            "model": self.machine.model,
        }

    def play(self, arm: Arm, made: Scenario, seed: int, role: str) -> Played:
        """One run, exactly repeatable."""
        started = time.monotonic()
        use, counted_at = arm.config.scheduler.use, dict[int, float]()

        def see(message: Message, now: float) -> None:
            if type(message) is StepLaunch:
                counted_at[message.step] = now

        run = play(
            arm.config,
            made,
            self.machine.step,
            seed,
            policy_cost=self.machine.cost_of(use),
            noise_sigma=self._spec.noise_sigma,
            noise_seed=noise_seed(arm.name, seed, role),
            known_lengths=self._spec.known_lengths,
            registry=self._registry,
            taps=[see],
        )
        return Played(run, {}, time.monotonic() - started, counted_at)

    def alone(self, arm: Arm) -> Alone:
        """Seconds of a request alone on the idle engine: its prompt in chunks of the budget, then token by token."""
        step, budget = self.machine.step, arm.config.scheduler.token_budget

        def seconds(prompt: int, output: int) -> float:
            total = 0.0
            for start in range(0, prompt, budget):
                chunk = min(budget, prompt - start)
                total += step(Features(chunk, 0, 0, chunk * (start + chunk / 2)))
            decodes = output - 1  # the contexts of the decode steps grow evenly: their mean stands for all
            return total + decodes * step(Features(0, 1, prompt + output / 2, 0)) if decodes else total

        return seconds

    def close(self) -> None:
        """Nothing is held."""


def noise_seed(arm: str, seed: int, role: str) -> int:
    """Every run has noise of its own: arms of a pair share their arrivals, never their machine's moods."""
    digest = hashlib.blake2b(f"{role} {arm} {seed}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")


def capacity(run: Run) -> float:
    """Requests per second that the engine completes when all are there from the start: over the middle 80 % of them,
    so that filling and draining do not count."""
    ends = sorted(one.finished_s for one in run.requests if one.finished_s is not None)
    low, high = int(0.1 * len(ends)), math.ceil(0.9 * len(ends)) - 1
    seconds = ends[high] - ends[low] if high > low else 0.0
    return (high - low) / seconds if seconds > 0 else math.nan
