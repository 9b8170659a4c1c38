"""How fast the machine is just now, by what a file of coefficients says of it.

A virtual machine shares memory bandwidth and caches with others: the same step takes up to half as long again a minute
later.  A pace of 1.1 says that steps take a tenth longer now than when the file was made.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from mainspring.core.policy import Executor, SamplerContext
from mainspring.core.registry import Registry
from mainspring.plugins.settings import Config
from mainspring.plugins.step_time import StepTimeFile
from mainspring.plugins.step_time.calibrate import Bench, Point, measure
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.step_time.policy_cost import PolicyCost

#: Decoding of a few and of many, prefill, and both: all of them fit into small pools.
POINTS: Sequence[Point] = (
    *(Point((), (length,) * count) for count, length in ((1, 64), (4, 128), (16, 40), (24, 30))),
    *(Point(((count, 0),), ()) for count in (64, 200)),
    *(Point(((count, 0),), (48,) * 8) for count in (48, 160)),
)


def pace(executor: Executor, config: Config, registry: Registry, machine: StepTimeFile, rounds: int = 5) -> float:
    """Mean over ``POINTS`` of measured by predicted time; ``executor`` is between two kernels.  Takes some seconds."""
    info = executor.load(lambda _line: None)
    ends = SamplerContext(info.vocab_size, info.end_token_ids)
    sampler = registry.make("sampler", config.sampler.use, config.sampler.options, ends)
    size = config.allocator.block_size
    bench = Bench(executor, sampler, info, size)
    bench.fill(max(size * point.num_blocks(size) for point in POINTS))
    measured = measure(bench, POINTS, rounds, lambda _line: None)
    return statistics.fmean(seconds / machine.step(features) for features, seconds in measured)


def at_pace(machine: StepTimeFile, factor: float) -> StepTimeFile:
    """The machine when everything takes ``factor`` times as long."""
    step = machine.step
    coefficients = {name: factor * getattr(step, name) for name in ("c0", "c1", "c2", "c3", "c4", "floor")}
    slopes = tuple(factor * slope for slope in step.slopes)
    slower: StepForm = msgspec.structs.replace(step, slopes=slopes, **coefficients)
    costs = {
        name: PolicyCost(a_us=factor * cost.a_us, b_us=factor * cost.b_us, c_us=factor * cost.c_us)
        for name, cost in machine.policy_cost.items()
    }
    return msgspec.structs.replace(machine, step=slower, policy_cost=costs)
