"""When requests are due and what they ask for: drawn before the run from one seed, so that a run can be repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from ...core.errors import ConfigError

WORDS = ("time", "river", "stone", "light", "garden", "winter", "letter", "music", "open", "quiet", "morning", "paper")
SLOW, CANCEL, PLAIN = "slow", "cancel", "plain"


class Job(NamedTuple):
    """One request: due ``at`` seconds after the start; ``kind``: a slow reader, a canceller, or neither."""

    at: float
    prompt: str
    max_tokens: int
    kind: str


class Load(NamedTuple):
    """``rate`` in requests per second, infinite for all at once; ``ramp_to`` is the rate at the end, if another.

    ``burstiness`` is the shape of gamma-distributed gaps: 1 is Poisson, below it arrivals come in bursts.
    ``slow`` and ``cancel`` are shares of the requests.
    """

    num_requests: int = 100
    rate: float = math.inf
    ramp_to: float | None = None
    burstiness: float = 1.0
    prompt_words: int = 32
    max_tokens: int = 64
    slow: float = 0.0
    cancel: float = 0.0
    seed: int = 0


def draw(load: Load) -> list[Job]:
    """The jobs of a synthetic load, in order of arrival."""
    random, at, jobs = Random(load.seed), 0.0, []
    for number in range(load.num_requests):
        if number and math.isfinite(load.rate):
            share = number / max(1, load.num_requests - 1)
            rate = load.rate if load.ramp_to is None else load.rate + (load.ramp_to - load.rate) * share
            at += random.gammavariate(load.burstiness, 1 / (rate * load.burstiness))
        jobs.append(_job(random, load, at, load.prompt_words, load.max_tokens))
    return jobs


def read_trace(path: Path, load: Load, speed: float = 1.0) -> list[Job]:
    """Jobs of a trace: JSON lines with ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens).

    ``speed`` 2 plays it in half the time.  Raises ConfigError naming file and line.
    """
    random, jobs = Random(load.seed), []
    for number, (at, num_words, num_tokens) in enumerate(_rows(path)):
        if number == load.num_requests:
            break
        jobs.append(_job(random, load, at / 1e3 / speed, num_words, num_tokens))
    if not jobs:
        raise ConfigError(f"--trace {path}: has no requests")
    first = min(job.at for job in jobs)
    return sorted((job._replace(at=job.at - first) for job in jobs), key=lambda job: job.at)


def _rows(path: Path) -> Iterator[tuple[float, int, int]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace {path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
                yield float(row["timestamp"]), int(row["input_length"]), int(row["output_length"])
            except (ValueError, KeyError, TypeError) as error:
                text = f"--trace {path}:{number}: needs timestamp, input_length and output_length as numbers"
                raise ConfigError(text) from error


def _job(random: Random, load: Load, at: float, num_words: int, num_tokens: int) -> Job:
    dice = random.random()
    kind = SLOW if dice < load.slow else CANCEL if dice < load.slow + load.cancel else PLAIN
    prompt = " ".join(random.choice(WORDS) for _ in range(max(1, num_words)))
    return Job(at, prompt, max(1, num_tokens), kind)
