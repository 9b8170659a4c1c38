"""How often a verdict is wrong, and how often it finds what was planted: where it can fail, with unpaired seeds.

Each arm has its own seeds and its own lognormal step noise (sigma 0.05), so nothing cancels.  The full form plays every
run afresh; the short one draws its experiments from a pool of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from random import Random

import pytest

from mainspring.plugins.experiments.simulated import KnownPlugins
from mainspring.plugins.experiments.statistics import paired, scale_of
from mainspring.plugins.experiments.verdict import Call, judge
from mainspring.plugins.experiments.workload import at_rate
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.simulation.play import configure, play
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.workloads.metrics import View, value
from mainspring.plugins.workloads.scenario import scenario

PAIRS, REQUESTS, RATE, SIGMA = 6, 10, 20.0, 0.05
DECLARED = (Call.BETTER, Call.WORSE)
#: slowdown -> the primary metric of a run with a seed of its own
Sample = Callable[[float], float]


@cache
def registry() -> KnownPlugins:
    return KnownPlugins()


def play_one(seed: int, slowdown: float) -> float:
    """Mean time per output token of one run on a machine that is so much slower."""
    made = at_rate(scenario("S1", "tiny", seed, num_requests=REQUESTS), RATE)
    step = StepForm(
        form="linear", c0=0.0125 * slowdown, c1=4.3e-5 * slowdown, c2=2.3e-5 * slowdown, c3=8.7e-8 * slowdown
    )
    config = configure(Config(scheduler=SchedulerConfig(depth=1)), made)
    run = play(config, made, step, seed, noise_sigma=SIGMA, noise_seed=seed, registry=registry())
    return value(View(run, made), "tpot_mean")


def declared(sample: Sample, slowdown: float) -> bool:
    """One experiment: baseline and other arm on seeds of their own, and a control on yet others."""
    base, other, control = ([sample(factor) for _ in range(PAIRS)] for factor in (1.0, slowdown, 1.0))
    scale = scale_of(base, other, control)
    effect, floor = paired(base, other, 0.95, scale), paired(base, control, 0.95, scale)
    assert floor is not None
    return judge(effect, floor.half_width, True, ()).call in DECLARED


def from_pools(num_runs: dict[float, int], random: Random) -> Callable[[], Sample]:
    """Every experiment deals from freshly shuffled pools, so no run stands in it twice."""
    pools: dict[float, list[float]] = {}
    for place, (slowdown, count) in enumerate(num_runs.items()):
        pools[slowdown] = [play_one(10_000 * place + index, slowdown) for index in range(count)]

    def shuffled() -> Sample:
        dealt = {slowdown: random.sample(pool, len(pool)) for slowdown, pool in pools.items()}
        return lambda slowdown: dealt[slowdown].pop()

    return shuffled


@pytest.mark.slow
def test_a_verdict_errs_seldom_and_finds_what_is_there() -> None:
    """Of 200 A/A experiments at most 18 declare; a slowdown of 10 % is found in 45 of 50, one of 1 % in at most 10."""
    deal = from_pools({1.0: 48, 1.1: 24, 1.01: 24}, Random(1))
    assert sum(declared(deal(), 1.0) for _ in range(200)) <= 18
    assert sum(declared(deal(), 1.1) for _ in range(50)) >= 45
    assert sum(declared(deal(), 1.01) for _ in range(50)) <= 10


def test_without_the_floor_the_interval_alone_keeps_its_word() -> None:
    """The floor is not what keeps errors rare: the same on draws without one, of unequal variances."""
    random = Random(5)
    wrong = 0
    for _ in range(2000):
        base = [math.exp(random.gauss(0, 0.05)) for _ in range(PAIRS)]
        other = [math.exp(random.gauss(0, 0.1)) for _ in range(PAIRS)]
        wrong += judge(paired(base, other), None, True, ()).call in DECLARED
    assert 0.03 < wrong / 2000 < 0.07


@pytest.mark.soak
def test_the_same_with_every_run_played_afresh() -> None:
    seeds = iter(range(1_000_000, 2_000_000))

    def fresh(slowdown: float) -> float:
        return play_one(next(seeds), slowdown)

    assert sum(declared(fresh, 1.0) for _ in range(200)) <= 18
    assert sum(declared(fresh, 1.1) for _ in range(50)) >= 45
    assert sum(declared(fresh, 1.01) for _ in range(50)) <= 10
