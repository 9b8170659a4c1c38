"""Requests with every kind of draw, played on an executor; and samplers other than the standard one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support import one_second

from mainspring.core.messages import Cancel, Message, SamplingParams, Submit
from mainspring.core.policy import SampleOutput, SamplerContext
from mainspring.plugins.settings import Config
from mainspring.plugins.simulator import LinearStepTime, Simulator
from mainspring.samplers.plan import SamplingPlan
from mainspring.samplers.standard import StandardSampler

PROMPTS = [list(range(20, 39)), [20, 21, 22, 23, 24, 25, 26, 27, 90], [7], list(range(20, 33)), list(range(60, 100))]
#: Greedy, every cut alone and together, and end ids held back: one request each.
REQUESTS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=0.8, top_k=20, seed=3, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=1.5, top_p=0.7, seed=4, max_tokens=12, min_tokens=12, stop_token_ids=(1, 2, 3, 70)),
    SamplingParams(temperature=1.0, min_p=0.1, seed=5, max_tokens=12, ignore_eos=True),
    SamplingParams(temperature=3.0, top_k=50, top_p=0.9, min_p=0.02, seed=6, max_tokens=12, ignore_eos=True),
]


def play(executor: Any, config: Config, sampler: str = "standard") -> list[list[int]]:
    """Ids of each request; they arrive one after the other.  Steps take a second, and a little for each token."""
    sim = Simulator(config, executor, LinearStepTime(1.0, 0.001), sampler=sampler)
    for index, (prompt, sampling) in enumerate(zip(PROMPTS, REQUESTS, strict=True)):
        sim.at(2.5 * index, Submit(str(index), tuple(prompt), sampling))
    sim.run()
    executor.close()
    out: list[list[int]] = [[] for _ in PROMPTS]
    for emit in sim.emitted:
        for row in emit.rows:
            assert row.finish is None or row.finish.failure is None
            out[int(row.rid)] += row.token_ids
    assert sim.actors.host.stats()["preemptions"] >= 1
    return out


def cancelled_amid(executor: Any, config: Config) -> None:
    """Two greedy requests decode; ``a`` is cancelled while a row of it runs, ``b`` goes on to its end."""
    sim = Simulator(config, executor, one_second, sampler="standard")
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    sim.at(0.0, Submit("a", tuple(range(20, 25)), sampling), Submit("b", tuple(range(30, 35)), sampling))
    sim.at(6.5, Cancel("a"))
    sim.run()


class Second(StandardSampler):
    """Draws otherwise: the second best."""

    def run(self, logits: Any, plan: SamplingPlan) -> SampleOutput:
        """See ``Sampler.run``."""
        return SampleOutput(logits.topk(2).indices[:, 1].tolist(), [])


class Composed:
    """A sampler around the standard one: plans come from that, the draw is its own."""

    api_level = 1
    parameters = StandardSampler.parameters

    def __init__(self, options: Any, context: SamplerContext) -> None:
        self.planner, self.drawer = StandardSampler(options, context), Second(options, context)

    def validate(self, params: SamplingParams) -> None:
        """See ``Sampler.validate``."""
        self.planner.validate(params)

    def handle(self, message: Message, now: float) -> Iterable[Message]:
        """See ``Sampler.handle``."""
        return self.planner.handle(message, now)

    def run(self, logits: Any, plan: SamplingPlan) -> SampleOutput:
        """See ``Sampler.run``."""
        return self.drawer.run(logits, plan)

    def check(self) -> None:
        """See ``Sampler.check``."""
        self.planner.check()


#: Samplers for ``play`` that draw by themselves.
OTHERS = [f"{__name__}:Second", f"{__name__}:Composed"]
