"""What KV bookkeeping costs, and that it does not grow with the pool.

    python benchmarks/allocator_cost.py [--allocators paged prefix radix contiguous none] [--pools 1000 10000 100000]

Microseconds, fastest of many rounds, with blocks of 16 tokens:

allocate + free   a request of 63 blocks comes and goes; per block
look-up           the hit of a 4,096-token prompt that is cached, in a full pool; per prompt
under pressure    a request of 63 blocks comes and goes in a full cache, so that each block evicts another; per block

``growth`` is the largest pool's figure over the smallest pool's; above 2 the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from mainspring.core.messages import Row, SamplingParams, Started, StepPlan, StepResult, Submit
from mainspring.core.policy import Allocator, AllocatorContext
from mainspring.core.registry import Registry
from mainspring.core.request import RequestView
from mainspring.plugins.traces.replay import Prompt

BLOCK_SIZE = 16
NUM_BLOCKS = 63  # of the request that comes and goes: its last block stays partial
PROMPT_TOKENS = 4096
CACHING = ("prefix", "radix")
MOST_GROWTH = 2.0


class Bench:
    """One allocator under a stream of requests that never repeat."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self._step = 0
        self._next_id = 0

    def fresh_ids(self, count: int) -> tuple[int, ...]:
        self._next_id += count
        return tuple(range(self._next_id, self._next_id + count))

    def come_and_go(self, ids: tuple[int, ...]) -> None:
        """A request is computed in one step, booked, and released."""
        rid, step = str(self._step), self._step + 1
        self._step += 2
        row = Row(rid, 0, len(ids), ids, True)
        started = Started(rid, ids, len(ids), 0, SamplingParams(max_tokens=1))
        (grant,) = self.allocator.handle(StepPlan(step, (row,), (started,)), 0.0)
        assert not grant.denied  # type: ignore[attr-defined]
        self.allocator.handle(StepResult(step, (rid,), (0,)), 0.0)
        self.allocator.handle(StepPlan(step + 1, (), released=(rid,)), 0.0)

    def churn(self) -> None:
        self.come_and_go(self.fresh_ids(NUM_BLOCKS * BLOCK_SIZE - 1))

    def lookup(self) -> Callable[[], object]:
        """Cache a long prompt and return the call that looks it up."""
        ids = self.fresh_ids(PROMPT_TOKENS)
        self.come_and_go(ids)
        view = RequestView(Prompt(Submit("asks", (*ids, 0))))
        assert self.allocator.cached_prefix_tokens(view) == PROMPT_TOKENS
        return lambda: self.allocator.cached_prefix_tokens(view)

    def fill(self) -> None:
        """Fill a cache to the last block."""
        for _ in range(self.allocator.num_blocks // (NUM_BLOCKS - 1) + 2):
            self.churn()


def fastest(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Microseconds of the fastest run of each call, in turns, so that other work on the machine meets all alike."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - begin)
    return [seconds * 1e6 for seconds in best]


def make(registry: Registry, name: str, num_blocks: int) -> Allocator:
    made: Allocator = registry.make("allocator", name, {}, AllocatorContext(num_blocks, BLOCK_SIZE))
    return made


def measure(registry: Registry, name: str, pools: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Figure -> microseconds at each pool size."""
    benches = [Bench(make(registry, name, size)) for size in pools]
    churn = [bench.churn for bench in benches]
    room = min(pools) // NUM_BLOCKS - 1 if name in CACHING else rounds  # until a cache is full
    figures = {"allocate + free": [each / NUM_BLOCKS for each in fastest(churn, min(rounds, room))]}
    if name in CACHING:
        for bench in benches:
            bench.fill()
        figures["under pressure"] = [each / NUM_BLOCKS for each in fastest(churn, rounds)]
        figures["look-up"] = fastest([bench.lookup() for bench in benches], rounds)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocators", nargs="+", default=["paged", "prefix", "radix", "contiguous", "none"])
    parser.add_argument("--pools", nargs="+", type=int, default=[1_000, 10_000, 100_000], help="blocks")
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args()
    registry, flat = Registry(), True
    sizes = "".join(f"{size:>12,}" for size in args.pools)
    print(f"{'microseconds at a pool of':<30}{sizes}{'growth':>10}")
    for name in args.allocators:
        for figure, values in measure(registry, name, args.pools, args.rounds).items():
            growth = values[-1] / values[0]
            flat = flat and growth <= MOST_GROWTH
            print(f"{name:<12}{figure:<18}{''.join(f'{value:>12.2f}' for value in values)}{growth:>10.2f}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
