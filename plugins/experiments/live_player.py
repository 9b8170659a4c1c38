"""Plays a scenario on a running kernel: an edge that submits when requests are due, whatever the engine does meanwhile.

Arrivals come from the schedule, never from completions; only a request that waits for another one (a turn, a branch)
starts when that has ended.  Latencies count from the moment at which a request was due.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...core.edge import KernelPort
from ...core.messages import Emit, FinishReason, Message, SamplingParams, StepLaunch, StepPlan, StepResult, Submit, Wake
from ..simulation.collect import Collector
from ..simulation.records import Run, number_of, shifted
from ..simulation.traffic import Traffic
from ..step_time.features import Features, features_of
from ..workloads.scenario import Scenario


class LivePlayer:
    """The edge, and the tap that counts steps.  ``await play()`` once the kernel runs."""

    name = "player"
    consumes: tuple[type[Message], ...] = (Emit,)

    def __init__(
        self,
        made: Scenario,
        traffic: Callable[[int], Traffic],
        sampling: Mapping[str, Any],
        forced: bool,
        seed: int = 0,
    ) -> None:
        """``traffic`` makes the requests for a size of vocabulary; ``sampling`` are fields of every request.  Not
        ``forced``: the model may end before the length is reached.  ``seed`` is that of the requests' draws."""
        self._made, self._make_traffic, self._sampling, self._forced = made, traffic, sampling, forced
        self._seed = seed
        #: The host's own numbers of running and waiting requests; set once there is a host.
        self.count: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._collect = Collector(made.rows)
        self._features: dict[int, tuple[Features, int, int, int, float]] = {}
        self.counted_at: dict[
            int, float
        ] = {}  # step -> when running and waiting were counted, from the start of the run
        self._submits: dict[int, Submit] = {}  # made, and not yet due
        self._ids: dict[int, list[int]] = {}
        self._ended = 0
        self._woken = self._policy_s = self._zero = 0.0
        self._done: asyncio.Future[None] | None = None
        self._port: KernelPort | None = None

    # --- Edge ------------------------------------------------------------------------------------------------------

    async def start(self, port: KernelPort) -> None:
        self._port, self._done = port, asyncio.get_running_loop().create_future()
        self._traffic = self._make_traffic(port.info.vocab_size)

    async def run(self, port: KernelPort) -> None:
        await asyncio.Event().wait()

    async def flush(self) -> None:
        """Nothing waits here."""

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Emit) and self._port is not None and self._done is not None
        now = self._port.now()
        for row in message.rows:
            self._ids.setdefault(number_of(row.rid), []).extend(row.token_ids)
        later: defaultdict[float, list[int]] = defaultdict(list)
        for number in self._collect.emit(message, now):
            self._ended += 1
            for due, child in self._traffic.ended(number, now):
                later[due].append(child)
        for due, children in later.items():  # after the plan of the next step, which waits for this
            asyncio.get_running_loop().call_soon(self._prepare, due, children)
        if self._ended == len(self._made.rows) and not self._done.done():
            self._done.set_result(None)

    # --- the tap ---------------------------------------------------------------------------------------------------

    def see(self, message: Message, now: float) -> None:
        """Every message of the router."""
        if isinstance(message, Wake):
            self._woken = now
        elif isinstance(message, StepPlan):
            self._policy_s = now - self._woken
        elif isinstance(message, StepLaunch) and message.rows:
            self.counted_at[message.step] = now - self._zero
            counts = len(message.rows), *self.count()
            self._features[message.step] = features_of(message.rows, message.padding), *counts, self._policy_s
        elif isinstance(message, StepResult) and message.step in self._features:
            features, batch, running, waiting, policy_s = self._features.pop(message.step)
            self._collect.step(message, features, batch, running, waiting, policy_s)

    # --- the run ---------------------------------------------------------------------------------------------------

    async def play(self, timeout_s: float) -> Run:
        """Submit everything when it is due and wait until all have ended, at most ``timeout_s``."""
        assert self._port is not None and self._done is not None
        together: defaultdict[float, list[int]] = defaultdict(list)
        for number in self._traffic.roots:
            self._make(number)
            together[self._made.rows[number].arrival_s].append(number)
        self._zero = zero = self._port.now() + 0.05
        for arrival_s, numbers in together.items():
            self._later(zero + arrival_s, numbers)
        try:
            async with asyncio.timeout(timeout_s):
                await self._done
        except TimeoutError:
            pass  # what has not ended is counted as such
        run = from_zero(self._collect.run("live", self._port.stats()), zero)
        return run if self._forced else as_long_as_they_were(run)

    def output_ids(self) -> dict[int, list[int]]:
        """By number of the row."""
        return self._ids

    def _make(self, number: int) -> None:
        """The request, as of one that is due at 0: prompts take long to make, and then the next would be late."""
        submit = self._traffic.submit(number, 0.0)
        sampling: SamplingParams = msgspec.structs.replace(
            submit.sampling, seed=self._seed * 100_003 + number, **self._sampling
        )
        if not self._forced:
            sampling = msgspec.structs.replace(sampling, max_tokens=submit.forced_length or 1, ignore_eos=False)
        forced = submit.forced_length if self._forced else None
        self._submits[number] = msgspec.structs.replace(submit, sampling=sampling, forced_length=forced)

    def _prepare(self, due: float, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._make(number)
        self._later(due, numbers)

    def _later(self, due: float, numbers: Sequence[int]) -> None:
        assert self._port is not None
        asyncio.get_running_loop().call_later(max(0.0, due - self._port.now()), self._submit, due, numbers)

    def _submit(self, due: float, numbers: Sequence[int]) -> None:
        """All that come at one moment are seen by one plan, as in virtual time."""
        assert self._port is not None
        if self._port.now() < due:  # timers that count milliseconds fire early
            self._later(due, numbers)
            return
        submits = []
        for number in numbers:
            submit = self._submits.pop(number)
            deadline = None if submit.deadline is None else due + submit.deadline
            submits.append(msgspec.structs.replace(submit, received=due, deadline=deadline))
            self._collect.arrived(number, due, self._port.now())
        self._port.post(*submits)


def as_long_as_they_were(run: Run) -> Run:
    """``run`` where a request that the model ended by itself is complete."""
    requests = tuple(
        msgspec.structs.replace(one, wanted_tokens=one.output_tokens)
        if one.reason == FinishReason.STOP and one.output_tokens
        else one
        for one in run.requests
    )
    return msgspec.structs.replace(run, requests=requests)


def from_zero(run: Run, zero: float) -> Run:
    """``run`` with times from ``zero`` on.  What never arrived has only its scheduled time, which is so already."""
    requests = tuple(shifted(one, -zero) if one.submitted_s is not None else one for one in run.requests)
    steps = tuple(msgspec.structs.replace(step, launched_s=step.launched_s - zero) for step in run.steps)
    return msgspec.structs.replace(run, requests=requests, steps=steps)
