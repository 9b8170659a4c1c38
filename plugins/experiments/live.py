"""One run of an arm on the real executor and the machine's clock.

Every run has a fresh kernel: host, allocator and sampler start empty, so nothing is cached from the run before.  The
executor with its weights is kept between runs that need the same one; its first run is a short one that nobody sees.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from ...core.clock import MonotonicClock
from ...core.edge import ExecutorEdge
from ...core.kernel import Kernel
from ...core.policy import Executor
from ...core.registry import Registry
from .. import event_loop
from ..executors.kept import KeptExecutor
from ..executors.memory import num_host_blocks
from ..executors.thread import ExecutorThread
from ..settings import Config
from ..simulation.records import Run
from ..simulation.traffic import Traffic
from ..workloads.metrics import Alone
from ..workloads.scenario import Scenario
from .arms import Arm
from .live_player import LivePlayer
from .prompts import PromptTraffic
from .simulated import Played
from .spec import Experiment
from .workload import prompt_ids

MOST_KEPT = 4  # executors with their weights
WARM_REQUESTS, WARM_TOKENS = 4, 4
#: The executor's thread runs Python too, above all in the sampler: asked for the interpreter, it keeps it for so long.
#: With Python's own 5 ms a request was handed over 5 to 20 ms late at the 99th percentile.
SWITCH_S = 0.0005
#: A run may take so long beyond its last scheduled arrival.
PATIENCE_S = 1800.0

#: A run, output ids by row, and when the host counted by step.
Seen = tuple[Run, dict[int, list[int]], dict[int, float]]
MakeExecutor = Callable[[Config], Executor]


class LiveClock:
    """Plays scenarios on the real engine, one run at a time."""

    clock = "live"

    def __init__(self, experiment: Experiment, make_executor: MakeExecutor | None = None) -> None:
        self._experiment, self._spec = experiment, experiment.spec
        self._registry = Registry()
        self._make = make_executor or self._configured
        self._kept: dict[bytes, KeptExecutor] = {}
        self.description = {"clock": "live: the real executor, on this machine's clock"}
        self.content = b""
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._loads: list[float] = []

    def play(self, arm: Arm, made: Scenario, seed: int, role: str) -> Played:
        """One run on a fresh kernel."""
        self._loads.append(os.getloadavg()[0])
        busy = f"{min(self._loads):.1f} to {max(self._loads):.1f}"
        self.description["load average"] = f"{busy} at the starts of runs, on {os.cpu_count()} cores"
        started = time.monotonic()
        run, outputs, counted_at = event_loop.run(self._play(arm, made, seed))
        return Played(run, outputs, time.monotonic() - started, counted_at)

    def alone(self, arm: Arm) -> Alone | None:
        """Not known without playing it."""
        return None

    def close(self) -> None:
        sys.setswitchinterval(self._switch_s)
        while self._kept:
            self._kept.popitem()[1].end()

    async def _play(self, arm: Arm, made: Scenario, seed: int) -> Seen:
        executor = self.executor(arm.config)
        if not executor.warm:
            await self._run(arm, warm_up(made), seed, executor)
            executor.warm = True
        return await self._run(arm, made, seed, executor)

    async def _run(self, arm: Arm, made: Scenario, seed: int, executor: KeptExecutor) -> Seen:
        def edge(kernel: Kernel) -> ExecutorEdge:
            return ExecutorThread(executor, kernel.post_threadsafe, kernel.now)

        def traffic(vocab_size: int) -> Traffic:
            if self._spec.workload.prompts:
                return PromptTraffic(made, seed, vocab_size, prompt_ids(self._experiment))
            return Traffic(made, seed, vocab_size, self._spec.known_lengths)

        player = LivePlayer(made, traffic, arm.sampling, self._spec.workload.forced, seed)
        kernel = Kernel(
            arm.config, self._registry, MonotonicClock(), edge, [player], [player.see], progress=lambda _line: None
        )

        def count() -> tuple[int, int]:
            host: Any = kernel.actors.host if kernel.actors else None
            return host.num_running, host.num_waiting

        player.count = count
        async with kernel.running():
            self.description["model"], self.description["executor"] = kernel.info.model, kernel.info.detail
            run = await player.play(max(row.arrival_s for row in made.rows) + PATIENCE_S)
        return run, player.output_ids(), player.counted_at

    def executor(self, config: Config) -> KeptExecutor:
        """The one for arms of this configuration, kept until others take its place."""
        limits = config.scheduler.token_budget, config.scheduler.max_running
        pool = config.allocator.block_size, config.allocator.num_blocks, num_host_blocks(config)
        key = msgspec.json.encode([config.executor, config.model, pool, limits])
        if key not in self._kept:
            while len(self._kept) >= MOST_KEPT:
                self._kept.pop(next(iter(self._kept))).end()
            self._kept[key] = KeptExecutor(self._make(config))
        return self._kept[key]

    def _configured(self, config: Config) -> Executor:
        made: Executor = self._registry.make("executor", config.executor.use, config.executor.options, config)
        return made


def warm_up(made: Scenario) -> Scenario:
    """A few requests at once with short answers, to have every allocation and compilation behind."""
    roots = [row for row in made.rows if not row.parents][:WARM_REQUESTS]
    short = tuple(msgspec.structs.replace(row, arrival_s=0.0, output_tokens=WARM_TOKENS) for row in roots)
    return msgspec.structs.replace(made, rows=short)
