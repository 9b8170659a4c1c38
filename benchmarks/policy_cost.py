"""What one scheduling decision costs: 256 requests running and 100, 1,000 or 10,000 waiting, for every policy.

Run ``python benchmarks/policy_cost.py [POLICY ...]``.  One core, no model: the real host, planner and policy in
virtual time, with about one request ending and one being admitted in each step.  ``plan`` is the decision alone (the
policy and the planner), ``apply`` carrying it out, ``book`` taking the step's tokens in: milliseconds of processor
time, medians over the steps of a run, the fastest of three runs.
"""

from __future__ import annotations

import argparse
import gc
import logging
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import structlog

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.messages import Emit, SamplingParams, StepLaunch, StepResult, Submit, Wake
from mainspring.core.policy import ExecutorInfo
from mainspring.core.registry import Registry
from mainspring.plugins.simulator import LinearStepTime, Simulator

CASES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "fcfs": ("fcfs", {}, ()),
    "fcfs, peak admission": ("fcfs", {"admission": "peak"}, ()),
    "token_budget": ("token_budget", {}, ()),
    "priority": ("priority", {}, ()),
    "fair": ("fair", {}, ()),
    "deadline": ("deadline", {}, ()),
    "deadline, slack": ("deadline", {"order": "slack"}, ()),
    "prefix_priority": ("prefix_priority", {}, ()),
    "shortest, prefill": ("shortest", {"mode": "prefill"}, ()),
    "shortest, remaining": ("shortest", {"mode": "remaining"}, ()),
    "shortest, hrrn": ("shortest", {"mode": "hrrn"}, ()),
    "mlfq": ("mlfq", {}, ()),
    "static_batch": ("static_batch", {"max_batch": 256}, ()),
    "dynamic_batch": ("dynamic_batch", {"max_batch": 256}, ()),
    "fcfs in ageing": ("fcfs", {}, ({"use": "ageing", "max_wait_s": 1e6},)),
    "fcfs in tenant_share": ("fcfs", {}, ("tenant_share",)),
}
RUNNING, TENANTS, PRIORITIES, STEPS, BLOCK = 256, 16, 4, 100, 16
ROUNDS = 3


class NoModel:
    """Answers every launch at once with the same token."""

    def __init__(self, num_blocks: int = 100_000, max_context: int = 1 << 20) -> None:
        self.info = ExecutorInfo("none", 1000, max_context, (0,), num_blocks)

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        return self.info

    def execute(self, launch: StepLaunch, sample: Any) -> StepResult:
        rids = tuple(row.rid for row in launch.rows if row.samples)
        return StepResult(launch.step, rids, (7,) * len(rids))

    def close(self) -> None:
        """Nothing to free."""


class Stopwatch:
    """Wraps functions and keeps how long each call took, in seconds."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {"plan": [], "wake": [], "book": []}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            answer = function(*arguments)
            self.taken[name].append(time.thread_time() - started)
            return answer

        return timed

    def median_ms(self, name: str) -> float:
        return 1e3 * statistics.median(self.taken[name][-STEPS:])


def measure(case: str, num_waiting: int, allocator: str = "paged") -> tuple[float, float, float]:
    """Median milliseconds of (plan, apply, book) per step."""
    use, options, wrap = CASES[case]
    config = Config(
        scheduler=SchedulerConfig(
            use=use, options=options, wrap=wrap, token_budget=4096, max_running=RUNNING, max_waiting=1 << 20, depth=1
        ),
        allocator=AllocatorConfig(use=allocator, block_size=BLOCK),
    )
    rng, serial = random.Random(1), iter(range(1 << 30))
    watch = Stopwatch()

    def new(now: float) -> Submit:
        number = next(serial)
        prompt = tuple(rng.randrange(2, 1000) for _ in range(rng.randint(8, 32)))
        sampling = SamplingParams(max_tokens=rng.randint(1, 2 * RUNNING), ignore_eos=True)
        deadline = now + rng.uniform(1e3, 1e6) if number % 2 else None
        return Submit(f"r{number}", prompt, sampling, number % PRIORITIES, f"t{number % TENANTS}", deadline)

    def refill(emit: Emit, now: float) -> None:
        for row in emit.rows:
            if row.finish is not None:
                simulator.post(new(now))

    simulator = Simulator(config, NoModel(), LinearStepTime(0.01, 0.0), Registry(), on_emit=refill)
    host: Any = simulator.actors.host
    host.planner.plan = watch.around("plan", host.planner.plan)
    handlers = host._handlers
    handlers[Wake] = watch.around("wake", handlers[Wake])
    handlers[StepResult] = watch.around("book", handlers[StepResult])
    simulator.at(0.0, *(new(0.0) for _ in range(RUNNING)))
    simulator.at(0.0, *(new(0.0) for _ in range(num_waiting)))
    gc.collect()
    simulator.run(max_events=STEPS + 20)
    plan = watch.median_ms("plan")
    return plan, watch.median_ms("wake") - plan, watch.median_ms("book")


def fastest(case: str, num_waiting: int, allocator: str) -> tuple[float, ...]:
    """The fastest of ``ROUNDS`` medians each: others on the machine only ever make it slower."""
    rounds = [measure(case, num_waiting, allocator) for _ in range(ROUNDS)]
    return tuple(min(column) for column in zip(*rounds, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--allocator", default="paged")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    sizes = (100, 1_000, 10_000)
    print(f"| policy | {' | '.join(f'plan, {size:,} waiting' for size in sizes)} | growth | apply | book |")
    print("|---|" + "---|" * (len(sizes) + 3))
    for case in arguments.cases or CASES:
        rows = [fastest(case, size, arguments.allocator) for size in sizes]
        plans = [plan for plan, _, _ in rows]
        _, apply, book = rows[-1]
        shown = " | ".join(f"{plan:.2f}" for plan in plans)
        print(f"| {case} | {shown} | {plans[-1] / plans[0]:.1f} | {apply:.2f} | {book:.2f} |", flush=True)


if __name__ == "__main__":
    main()
