"""What the policies do, as tables: fairness, prefix order, the token budget, victims, admission, batching.

Run ``python benchmarks/policy_figures.py [TABLE ...]``.  Everything is virtual time on the real host and policies with
a linear step time, so that every figure repeats exactly on any machine.  docs/policies.md shows the output.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from policy_cost import NoModel

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.hookspecs import Register, hookimpl
from mainspring.core.messages import Emit, Finish, Message, SamplingParams, StepPlan, Submit
from mainspring.core.policy import SchedulerPolicy, SchedulerView
from mainspring.core.registry import Registry
from mainspring.plugins.simulator import LinearStepTime, Simulator

BLOCK = 16


class Outcome(NamedTuple):
    """What came out of one run.  Times in virtual seconds."""

    finishes: Mapping[str, Finish]
    token_times: Mapping[str, Sequence[float]]
    counters: Mapping[str, int]
    starts: Sequence[str]

    def ttft(self, rids: Iterable[str] | None = None) -> list[float]:
        chosen = self.finishes if rids is None else rids
        return [times[0] - self.finishes[rid].timing.arrival for rid in chosen if (times := self.token_times.get(rid))]

    def gaps(self) -> list[float]:
        """Seconds between tokens of one request, all requests together."""
        return [b - a for times in self.token_times.values() for a, b in itertools.pairwise(times)]

    @property
    def makespan(self) -> float:
        return max(finish.timing.finished or 0.0 for finish in self.finishes.values())


class Separate(SchedulerPolicy):
    """Prompts and decoding never share a step: what engines did before hybrid batching.

    ``alternate`` gives every other step to decoding (then prompts may be cut in chunks by the budget), else prompts
    always go first.
    """

    alternate = False

    def split_budget(self, view: SchedulerView) -> Mapping[str, int] | None:
        prompts = [request.rid for request in view.running if request.num_remaining_tokens > 1]
        decodes = [request.rid for request in view.running if request.num_remaining_tokens == 1]
        fits = view.num_waiting and view.num_running < view.max_running
        turn = not decodes or not self.alternate or view.step % 2
        if (prompts or fits) and turn:
            return {**dict.fromkeys(prompts, view.token_budget), "*": view.token_budget}
        return {**dict.fromkeys(decodes, 1), "*": 0}


class Alternate(Separate):
    alternate = True


class Extra:
    """Registers the two policies above."""

    @hookimpl
    def register_schedulers(self, register: Register) -> None:
        register("separate", Separate)
        register("alternate", Alternate)


def play(
    submits: Iterable[tuple[float, Submit]],
    step_time: Callable[[Any], float],
    num_blocks: int,
    scheduler: Mapping[str, Any],
    allocator: str = "paged",
    until: float = float("inf"),
    tap: Callable[[Message, float], None] | None = None,
) -> Outcome:
    """One run in virtual time, where nothing lies between two steps that planning ahead could hide."""
    config = Config(
        scheduler=SchedulerConfig(max_waiting=1 << 20, depth=1, **scheduler),
        allocator=AllocatorConfig(use=allocator, block_size=BLOCK),
    )
    finishes: dict[str, Finish] = {}
    times: dict[str, list[float]] = defaultdict(list)
    starts: list[str] = []

    def collect(emit: Emit, now: float) -> None:
        for row in emit.rows:
            times[row.rid].extend([now] * len(row.token_ids))
            if row.finish is not None:
                finishes[row.rid] = row.finish

    def watch(message: Message, now: float) -> None:
        if isinstance(message, StepPlan):
            starts.extend(started.rid for started in message.started)
        if tap is not None:
            tap(message, now)

    registry = Registry()
    registry.add(Extra(), "policy_figures")
    simulator = Simulator(config, NoModel(num_blocks), step_time, registry, [watch], collect)
    for moment, submit in submits:
        simulator.at(moment, submit)
    simulator.run(until)
    host: Any = simulator.actors.host
    assert not host.stats()["policy_faults"]
    return Outcome(finishes, times, host.counters, starts)


def request(rid: str, prompt: Sequence[int], output: int, **fields: Any) -> Submit:
    return Submit(rid, tuple(prompt), SamplingParams(max_tokens=output, ignore_eos=True), **fields)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(f'{cell:,.3g}' if isinstance(cell, float) else str(cell) for cell in row)} |", flush=True)


# --- tables ----------------------------------------------------------------------------------------------------------


def fairness() -> None:
    """Two clients at 1.5 and 3 requests/s, 256 tokens in and out, 360 s; service = input + 2 x output."""
    length, pool_tokens, seconds = 256, 10_000, 360.0
    arms: dict[str, dict[str, Any]] = {
        "fcfs": {"use": "fcfs"},
        "fair": {"use": "fair"},
        "fair, lift = false": {"use": "fair", "options": {"lift": False}},
        "fcfs in tenant_share": {"use": "fcfs", "wrap": ("tenant_share",), "max_running": 32},
    }
    rows = []
    for name, scheduler in arms.items():
        service: Counter[str] = Counter()
        gaps: list[tuple[float, int]] = []
        seen: Counter[str] = Counter()  # prompt tokens computed once: doing it again is no service

        def count(message: Message, now: float, service: Any = service, gaps: Any = gaps, seen: Any = seen) -> None:
            if isinstance(message, StepPlan):
                for row in message.rows:
                    new_input = max(0, min(row.start + row.count, length) - seen[row.rid])
                    seen[row.rid] += new_input
                    service[row.rid[:4]] += new_input + 2 * row.samples
                gaps.append((now, abs(service["slow"] - service["fast"])))

        submits = [
            (index / rate, request(f"{tenant}{index}", range(2, 2 + length), length, tenant=tenant))
            for tenant, rate in (("slow", 1.5), ("fast", 3.0))
            for index in range(int(rate * seconds))
        ]
        play(submits, LinearStepTime(0.035, 0.0003), pool_tokens // BLOCK, scheduler, until=seconds, tap=count)
        at = [next(gap for now, gap in reversed(gaps) if now <= moment) for moment in (120, 240, 360)]
        rows.append(
            (name, *(f"{gap:,}" for gap in at), f"{max(gap for _, gap in gaps):,}", f"{sum(service.values()):,}")
        )
    bound = 2 * max(length, 2 * pool_tokens)
    table(
        f"Fairness: gap in service of two clients (bound {bound:,})",
        ("policy", "after 120 s", "240 s", "360 s", "largest", "service in all"),
        rows,
    )


def prefix() -> None:
    """64 system prompts of 2,048 tokens, Zipf popularity, room for 20 of them beside 32 running requests."""
    rng = random.Random(7)
    groups, shared = 64, 2048
    weights = [1 / rank for rank in range(1, groups + 1)]
    prompts = [[rng.randrange(2, 1000) for _ in range(shared)] for _ in range(groups)]
    submits, moment, group_of = [], 0.0, {}
    for index in range(1024):
        moment += rng.expovariate(RATE_PREFIX)
        group = rng.choices(range(groups), weights)[0]
        question = [rng.randrange(2, 1000) for _ in range(min(1024, round(rng.lognormvariate(4.85, 0.6))))]
        output = max(1, min(1024, round(rng.lognormvariate(5.55, 0.7))))
        group_of[f"r{index}"] = group
        submits.append((moment, request(f"r{index}", prompts[group] + question, output)))
    total = sum(len(submit.prompt_ids) for _, submit in submits)
    bound = 1 - (len(set(group_of.values())) * shared + total - 1024 * shared) / total
    num_blocks = (20 * shared + 32 * (128 + 256 + 128)) // BLOCK
    order = {submit.rid: index for index, (_, submit) in enumerate(submits)}
    rare = [rid for rid, group in group_of.items() if group >= 48]
    rows = []
    arms: dict[str, dict[str, Any]] = {
        "fcfs": {"use": "fcfs"},
        "prefix_priority": {"use": "prefix_priority"},
        "prefix_priority, max_passes = 8": {"use": "prefix_priority", "options": {"max_passes": 8}},
        "prefix_priority, max_passes = 1,000": {"use": "prefix_priority", "options": {"max_passes": 1000}},
        "shortest, prefill": {"use": "shortest"},
        "shortest, hrrn": {"use": "shortest", "options": {"mode": "hrrn"}},
    }
    for name, scheduler in arms.items():
        out = play(submits, LinearStepTime(0.010, 0.0001), num_blocks, {"max_running": 32, **scheduler}, "prefix")
        cached = sum(finish.usage.cached for finish in out.finishes.values())
        passes: Counter[str] = Counter()
        first = list(dict.fromkeys(out.starts))
        for at, rid in enumerate(first):
            passes[rid] = sum(order[earlier] > order[rid] for earlier in first[:at])
        ttft, cold = out.ttft(), out.ttft(rare)
        rows.append(
            (
                name,
                f"{100 * cached / total:.1f} %",
                statistics.mean(ttft),
                percentile(ttft, 0.99),
                percentile(cold, 0.99),
                max(passes.values()),
                out.makespan,
            )
        )
    head = ("policy", "token hit rate", "mean TTFT, s", "p99", "p99, rarest quarter", "most passes", "makespan, s")
    table(f"64 shared system prompts (hit rate at most {100 * bound:.1f} %)", head, rows)


RATE_PREFIX = 5.0


def budget() -> None:
    """90 % short prompts (64 to 256), 10 % long ones (2,000 to 4,000), 64 to 256 tokens out, Poisson 6/s."""
    rng = random.Random(3)
    submits, moment = [], 0.0
    for index in range(400):
        moment += rng.expovariate(6.0)
        length = rng.randint(2000, 4000) if rng.random() < 0.1 else rng.randint(64, 256)
        submits.append((moment, request(f"r{index}", [5] * length, rng.randint(64, 256))))
    short = [submit.rid for _, submit in submits if len(submit.prompt_ids) < 1000]

    def row(name: str, scheduler: Mapping[str, Any]) -> Sequence[Any]:
        out = play(submits, LinearStepTime(0.015, 0.0001), 20_000, scheduler)
        ttft, gaps = out.ttft(), out.gaps()
        return (
            name,
            1e3 * statistics.mean(ttft),
            1e3 * percentile(ttft, 0.99),
            1e3 * percentile(out.ttft(short), 0.99),
            1e3 * percentile(gaps, 0.5),
            1e3 * percentile(gaps, 0.99),
            1e3 * max(gaps),
        )

    head = ("", "mean TTFT, ms", "p99", "p99, short prompts", "median ITL, ms", "p99", "largest")
    whole = 1 << 14
    table(
        "Hybrid batching and chunking",
        head,
        [
            row("neither: prompts whole, first, alone", {"use": "separate", "token_budget": whole}),
            row("hybrid only: prompts whole, mixed", {"use": "fcfs", "token_budget": whole}),
            row("chunking only: 512, in turns", {"use": "alternate", "token_budget": 512}),
            row("both: token_budget 512", {"use": "token_budget", "token_budget": 512}),
        ],
    )
    sizes = (128, 256, 512, 1024, 2048, 4096)
    table(
        "token_budget over budgets",
        head,
        [row(f"{size:,}", {"use": "token_budget", "token_budget": size}) for size in sizes],
    )
    table("fcfs over budgets", head, [row(f"{size:,}", {"token_budget": size}) for size in sizes])


def victims() -> None:
    """300 requests at once, prompts 16 to 512, outputs 16 to 512 (seed 12345); pools in blocks of 16 tokens."""
    rng = random.Random(12345)
    work = [(rng.randint(16, 512), rng.randint(16, 512)) for _ in range(300)]
    submits = [(0.0, request(f"r{index}", [5] * prompt, output)) for index, (prompt, output) in enumerate(work)]
    total, pools = sum(map(sum, work)), (8000, 2800, 1600, 800, 400)
    rows = []
    for choice in ("least_computed", "latest", "random", "most_computed", "longest_remaining"):
        cells = []
        for pool in pools:
            out = play(submits, LinearStepTime(), pool, {"options": {"victims": choice}, "token_budget": 2048})
            cells.append(f"{100 * out.counters['recomputed_tokens'] / total:.1f} %")
        rows.append((choice, *cells))
    table("Recompute tax: tokens computed again / tokens of work", ("victims", *(f"{p:,} blocks" for p in pools)), rows)


def admission() -> None:
    """The same 300 requests on 800 blocks."""
    rng = random.Random(12345)
    work = [(rng.randint(16, 512), rng.randint(16, 512)) for _ in range(300)]
    submits = [(0.0, request(f"r{index}", [5] * prompt, output)) for index, (prompt, output) in enumerate(work)]
    rows = []
    arms: dict[str, dict[str, Any]] = {
        "prompt": {},
        "prompt, watermark 5 %": {"watermark": 0.05},
        "prompt, watermark 20 %": {"watermark": 0.2},
        "peak": {"options": {"admission": "peak"}},
        "final": {"options": {"admission": "final"}},
        "final, every 8th step": {"options": {"admission": "final", "admit_every": 8}},
    }
    for name, scheduler in arms.items():
        out = play(submits, LinearStepTime(), 800, {"token_budget": 2048, **scheduler})
        rows.append(
            (
                name,
                out.counters["preemptions"],
                f"{out.counters['recomputed_tokens']:,}",
                out.makespan,
                statistics.mean(out.ttft()),
                1e3 * percentile(out.gaps(), 0.99),
            )
        )
    head = ("admission", "preemptions", "recomputed tokens", "makespan, s", "mean TTFT, s", "p99 ITL, ms")
    table("Admission estimates", head, rows)


def batching() -> None:
    """256 requests, prompts 32 to 256, outputs 8 to 512, Poisson 4/s, 16 slots."""
    rng = random.Random(11)
    submits, moment = [], 0.0
    for index in range(256):
        moment += rng.expovariate(4.0)
        submits.append((moment, request(f"r{index}", [5] * rng.randint(32, 256), rng.randint(8, 512))))
    rows = []
    arms: dict[str, dict[str, Any]] = {
        "static_batch": {"use": "static_batch", "options": {"max_batch": 16}},
        "dynamic_batch": {"use": "dynamic_batch", "options": {"max_batch": 16, "max_wait_s": 0.5}},
        "fcfs (continuous)": {},
        "shortest, remaining": {"use": "shortest", "options": {"mode": "remaining"}},
        "mlfq": {"use": "mlfq"},
    }
    for name, scheduler in arms.items():
        out = play(submits, LinearStepTime(0.020, 0.0001), 4000, {"max_running": 16, "token_budget": 4096, **scheduler})
        tokens = sum(finish.usage.output for finish in out.finishes.values())
        latencies = [(finish.timing.finished or 0.0) - finish.timing.arrival for finish in out.finishes.values()]
        rows.append(
            (name, tokens / out.makespan, statistics.mean(out.ttft()), statistics.mean(latencies), out.makespan)
        )
    table("Batching", ("policy", "tokens/s", "mean TTFT, s", "mean latency, s", "makespan, s"), rows)


TABLES: dict[str, Callable[[], None]] = {
    "fairness": fairness,
    "prefix": prefix,
    "budget": budget,
    "victims": victims,
    "admission": admission,
    "batching": batching,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"some of: {', '.join(TABLES)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for name in parser.parse_args().tables or TABLES:
        print(f"\n{TABLES[name].__doc__}", file=sys.stderr)
        TABLES[name]()


if __name__ == "__main__":
    main()
