"""The traffic of one run: the scenario drawn with a seed, the window of a trace, or prompts of text, at a rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from ...core.errors import ConfigError
from ..traces.canonical import TraceRow
from ..traces.formats import read
from ..traces.source import read_bytes
from ..workloads.scenario import Scenario, from_trace, scale_arrivals, scenario
from .prompts import encoded
from .spec import Experiment

#: Seeds of the A/A control lie this far from those of the pairs.
FLOOR_OFFSET = 1_000_003

#: seed -> scenario at its own rate
Source = Callable[[int], Scenario]


def source(experiment: Experiment) -> Source:
    """What makes the scenario of a seed.  Raises ConfigError for whatever is wrong in the workload's table."""
    work = experiment.spec.workload
    if work.trace:
        return _windows(experiment)
    if work.prompts:
        return lambda seed: _prompts(experiment, seed)

    def draw(seed: int) -> Scenario:
        try:
            return scenario(work.scenario, work.size, seed, **work.options)
        except ConfigError as error:
            raise experiment.error(f"workload: {error}") from error

    return draw


def at_rate(made: Scenario, rate: float) -> Scenario:
    """``made`` with its roots (requests, sessions, trees) arriving at ``rate`` per second; infinite: all at once."""
    return msgspec.structs.replace(made, rows=scale_arrivals(made.rows, rate), rate_per_s=rate)


def num_roots(made: Scenario) -> int:
    """Rows that wait for nobody."""
    return sum(not row.parents for row in made.rows)


def _windows(experiment: Experiment) -> Source:
    """Pair i plays the i-th window, so that pairs share no request; the A/A control plays windows behind those."""
    spec, work = experiment.spec, experiment.spec.workload
    path = _trace_path(experiment)
    trace = read(work.format, path, **work.options)
    size, seeds = work.window_requests, spec.seed_list
    if any(row.parents for row in trace.rows):
        raise experiment.error("workload.trace: requests that wait for others cannot be cut into windows")
    if (need := 2 * len(seeds) * size) > len(trace.rows):
        most = len(trace.rows) // (2 * len(seeds))
        raise experiment.error(
            f"workload.window_requests = {size}: {len(seeds)} pairs and their control need {need} requests, the trace "
            f"has {len(trace.rows)}; use at most {most}, or fewer seeds"
        )
    order = {seed: index for index, seed in enumerate(seeds)}
    order |= {seed + FLOOR_OFFSET: len(seeds) + index for index, seed in enumerate(seeds)}

    def window(seed: int) -> Scenario:
        rows = trace.rows[order[seed] * size : (order[seed] + 1) * size]
        first = rows[0].arrival_s
        moved = tuple(msgspec.structs.replace(row, arrival_s=row.arrival_s - first) for row in rows)
        return from_trace(moved, work.kv_tokens, work.max_output, name=path.name, seed=seed)

    return window


def _trace_path(experiment: Experiment) -> Path:
    return experiment.path.parent / experiment.spec.workload.trace  # an absolute one stays as it is


def trace_digest(experiment: Experiment) -> str:
    """SHA-256 of the trace's bytes; empty without one.  Raises ConfigError for a file that cannot be read."""
    return read_bytes(_trace_path(experiment))[1] if experiment.spec.workload.trace else ""


def prompt_ids(experiment: Experiment) -> tuple[tuple[int, ...], ...]:
    """The ids of ``workload.prompts``, by the tokenizer of the model that all arms have."""
    work = experiment.spec.workload
    model = experiment.spec.config.get("model", {})
    return encoded(work.prompts, str(model.get("path", "")), work.chat)


def _prompts(experiment: Experiment, seed: int) -> Scenario:
    """The prompts in turns, Poisson arrivals; without ``kv_tokens``, memory for all of them at once."""
    work, random, at, rows = experiment.spec.workload, Random(seed), 0.0, []
    ids = prompt_ids(experiment)
    for number in range(work.num_requests):
        length = len(ids[number % len(ids)])
        rows.append(TraceRow(arrival_s=at, input_tokens=length, output_tokens=work.output_tokens))
        at += random.expovariate(1.0)
    kv_tokens = work.kv_tokens or sum(row.input_tokens + row.output_tokens + 16 for row in rows)
    return from_trace(tuple(rows), kv_tokens, work.output_tokens, name="prompts", seed=seed)
