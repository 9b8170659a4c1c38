"""Measures an executor on a designed grid of steps, and the host's turns, for a file of coefficients.

Production steps are of little use for a fit: what they compute grows and shrinks together.  The grid has prefill alone,
decode alone at four context lengths, both together, and random mixtures, in random order, several times over, each
time on other tokens: how long a draw takes depends on them.  The mean of each point counts, without its slowest fifth.
"""

from __future__ import annotations

import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...core.errors import ConfigError
from ...core.messages import GrantedRow, SamplingParams, Started, StepGrant, StepLaunch
from ...core.policy import Executor, ExecutorInfo, Sampler, SamplerContext
from ...core.registry import Registry
from ..executors.kept import KeptExecutor
from ..machine import processor
from ..settings import Config
from . import live_turns
from .features import Features, features_of
from .files import StepTimeFile, Validation
from .fit import choose
from .policy_cost import PolicyCost
from .turn_cost import fit_turns

MOST_TURNS = 4
MOST_TOKENS = 10_240  # of KV in one step: all of it has to be computed once before it can be read


class Point(NamedTuple):
    """A step: pieces of prompts as (tokens, context before them), and the contexts of decoding sequences."""

    prompts: tuple[tuple[int, int], ...]
    contexts: tuple[int, ...]

    def num_blocks(self, block_size: int) -> int:
        """Its size in the pool."""
        lengths = (*(count + before for count, before in self.prompts), *self.contexts)
        return sum(-(-length // block_size) for length in lengths)


def _powers(least: int, most: int) -> list[int]:
    out = []
    while least < most:
        out.append(least)
        least *= 2
    return [*out, most]


def grid(
    token_budget: int, max_running: int, max_context: int, pool_tokens: int, block_size: int, seed: int = 0
) -> list[Point]:
    """Points that fit the engine's limits: prefill 16 to the budget, decode 1 to the batch limit at four contexts,
    mixtures, and as many random ones again for the fit to be tried on."""
    rng = random.Random(seed)
    most = min(token_budget, max_context - 1, pool_tokens // 2)
    contexts = [n for n in (32, 128, 512, 2048) if n < max_context] or [max_context // 2]
    batches = _powers(1, min(max_running, token_budget, 64))
    points = [Point(((count, 0),), ()) for count in _powers(min(16, most), most)]
    points += [Point(((min(64, most), n),), ()) for n in contexts]
    points += [Point((), (n,) * batch) for batch in batches for n in contexts]
    points += [
        Point(((count, 0),), (contexts[1 % len(contexts)],) * batch)
        for count in (min(16, most), min(64, most), min(256, most))
        for batch in (2, 8, 24)
        if count + batch <= token_budget and batch <= max_running
    ]
    for _ in range(len(points) // 2):
        batch = round(2 ** rng.uniform(0, np.log2(max(batches))))
        count = round(2 ** rng.uniform(3, np.log2(max(9, most - batch))))
        before = rng.choice((0, 0, 64, max(contexts)))
        prompts = ((count, before),) if rng.random() < 0.6 and count + batch <= token_budget else ()
        points.append(Point(prompts, tuple(round(2 ** rng.uniform(3, np.log2(max(contexts)))) for _ in range(batch))))
    fitting = [
        point
        for point in dict.fromkeys(points)
        if block_size * point.num_blocks(block_size) <= min(pool_tokens * 0.9, MOST_TOKENS)
        and all(a + b < max_context for a, b in point.prompts)
        and all(n < max_context for n in point.contexts)
    ]
    if len(fitting) < 12:
        raise ConfigError(
            f"calibrate: only {len(fitting)} steps fit {pool_tokens} tokens of KV and {max_context} of context;"
            " raise executor.memory or model.max_context"
        )
    return fitting


class Bench:
    """An executor with a sampler in front of it, and launches made for its pool."""

    def __init__(
        self, executor: Executor, sampler: Sampler, info: ExecutorInfo, block_size: int, processor_time: bool = False
    ) -> None:
        """``processor_time``: of this thread instead of the clock's, which others on the machine disturb less."""
        self._executor, self._sampler, self._info, self._size = executor, sampler, info, block_size
        self._processor_time, self._step = processor_time, 0
        self._ids = random.Random(0)

    def fill(self, num_tokens: int) -> None:
        """Compute so much of the pool once: memory that was never written may be slow, or no number."""
        count = min(256, self._info.max_context - 1)
        each = -(-count // self._size)
        for start in range(0, min(self._info.num_blocks, -(-num_tokens // self._size) + each) - each + 1, each):
            self.run(Point(((count, 0),), ()), start)

    def run(self, point: Point, first_block: int = 0) -> tuple[Features, float]:
        """One step: its features and the seconds that the executor took."""
        launch, started = self._launch(point, first_block), time.thread_time()
        result = self._executor.execute(launch, self._sampler.run)
        used = time.thread_time() - started
        return features_of(launch.rows), used if self._processor_time else result.finished - result.launched

    def _launch(self, point: Point, first_block: int) -> StepLaunch:
        self._step += 1
        rows, block = [], first_block
        pieces = [*point.prompts, *((1, n - 1) for n in point.contexts)]
        for number, (count, start) in enumerate(pieces):
            blocks = tuple(range(block, block + -(-(start + count) // self._size)))
            block += len(blocks)
            slots = tuple(blocks[at // self._size] * self._size + at % self._size for at in range(start, start + count))
            ids = tuple(self._ids.randrange(20, self._info.vocab_size - 20) for _ in range(count))
            rows.append(GrantedRow(f"c{number}", start, count, ids, True, blocks, slots))
        # Drawn, as requests are that say nothing.
        sampling = SamplingParams(max_tokens=1 << 20, ignore_eos=True, seed=self._step)
        started = tuple(Started(row.rid, row.token_ids or (), row.count, 0, sampling) for row in rows)
        grant = StepGrant(self._step, tuple(rows), started, tuple(row.rid for row in rows) if self._step > 1 else ())
        made = [message for message in self._sampler.handle(grant, 0.0) if isinstance(message, StepLaunch)]
        return made[0]


def measure(
    bench: Bench, points: Sequence[Point], repeats: int, progress: Callable[[str], None], seed: int = 0
) -> Iterator[tuple[Features, float]]:
    """Each point's features and its seconds over ``repeats`` rounds in random order; one round warms up.

    Short steps come up to ``MOST_TURNS`` times a round: they are disturbed as often as long ones, by a larger share.
    """
    rng, taken, turns = random.Random(seed), [list[float]() for _ in points], [1] * len(points)
    features: list[Features] = [Features(0, 0, 0, 0)] * len(points)
    for turn in range(repeats + 1):
        order = [index for index, count in enumerate(turns) for _ in range(count)]
        rng.shuffle(order)
        for index in order:
            features[index], seconds = bench.run(points[index])
            taken[index].append(seconds)
        if not turn:
            mean = statistics.fmean(times[0] for times in taken)
            turns = [max(1, min(MOST_TURNS, round(mean / max(times.pop(), 1e-9)))) for times in taken]
        progress(f"round {turn} of {repeats}: {len(order)} steps" if turn else "warmed up")
    for one, times in zip(features, taken, strict=True):
        yield one, typical(times)


def typical(times: Sequence[float]) -> float:
    """Mean without the slowest fifth; of few the median."""
    return statistics.median(times) if len(times) < 5 else statistics.fmean(sorted(times)[: -(-len(times) * 4 // 5)])


def calibrate(
    config: Config,
    registry: Registry,
    repeats: int = 5,
    policies: Sequence[str] = (),
    progress: Callable[[str], None] = lambda _line: None,
    executor: Executor | None = None,
    processor_time: bool = False,
) -> StepTimeFile:
    """Measure the configured executor (or ``executor``) and return the file.  Raises ConfigError.

    ``processor_time``: what the executor's thread computed instead of how long it took; only with one thread.
    """
    if processor_time and config.executor.threads != 1:
        raise ConfigError(f"executor.threads = {config.executor.threads}: processor time is of one thread; set it to 1")
    made = KeptExecutor(executor or registry.make("executor", config.executor.use, config.executor.options, config))
    info = made.load(progress)
    try:
        ends = SamplerContext(info.vocab_size, info.end_token_ids)
        sampler = registry.make("sampler", config.sampler.use, config.sampler.options, ends)
        size, limits = config.allocator.block_size, config.scheduler
        points = grid(limits.token_budget, limits.max_running, info.max_context, info.num_blocks * size, size)
        bench = Bench(made, sampler, info, size, processor_time)
        progress("writing KV memory")
        bench.fill(max(size * point.num_blocks(size) for point in points))
        measured = list(measure(bench, points, repeats, progress))
        extra = PolicyCost()
        if not processor_time:  # other work would count in full
            extra = live_turns.beyond(config, registry, made, info.num_blocks * size)
            progress(f"a live turn adds {extra.a_us:.0f} + {extra.b_us:.2f} running us")
    finally:
        made.end()
    features = np.asarray([list(one) for one, _ in measured], np.float64)
    chosen = choose(features, np.asarray([seconds for _, seconds in measured]))
    costs = {name: cost.plus(extra) for name, cost in fit_turns(registry, policies, progress).items()}
    costs["default"] = costs.get(live_turns.POLICY) or extra  # policies that somebody writes take turns too
    clock = "processor time" if processor_time else "wall time"
    method = f"{len(points)} steps, {clock}, means of {repeats} rounds, five folds held out; forms: median error"
    return StepTimeFile(
        machine=processor(),
        model=info.model,
        source="mainspring calibrate",
        step=chosen.step,
        validation=Validation(method=method, held_out=chosen.held_out, forms=chosen.forms),
        policy_cost=costs,
        details={"executor": info.detail, "python": platform.python_version(), "blocks": str(info.num_blocks)},
    )
