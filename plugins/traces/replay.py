"""Plays a trace of shared prompt blocks through a real allocator and counts what its cache would have held.

Requests come one at a time in arrival order; each is stored whole as soon as it arrives and gives up its blocks at
once, so the answer is about content and eviction only, not about timing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...core.messages import Row, SamplingParams, Started, StepPlan, StepResult, Submit
from ...core.policy import Allocator
from ...core.request import RequestView

#: A block of the trace becomes one block of the allocator, of the fewest tokens that leave a partial one at the end.
BLOCK_SIZE = 2


class HitRates(NamedTuple):
    """Prompt blocks of a whole trace: all, found in the cache, and the same for the first block of each prompt."""

    num_requests: int
    num_blocks: int
    num_hits: int
    num_first_hits: int
    num_evictions: int

    @property
    def share(self) -> float:
        """Share of prompt blocks found."""
        return self.num_hits / max(1, self.num_blocks)

    @property
    def share_beyond_first(self) -> float:
        """The same without the first block of each prompt, which may be a system prompt that all have."""
        return (self.num_hits - self.num_first_hits) / max(1, self.num_blocks - self.num_requests)


class Prompt:
    """The record behind a ``RequestView`` of a request that has only a prompt."""

    output_ids = ()

    def __init__(self, submit: Submit) -> None:
        self.submit, self.rid = submit, submit.rid
        self.num_prompt_tokens = self.num_tokens = self.num_known_tokens = len(submit.prompt_ids)

    def known_ids(self, start: int, stop: int) -> tuple[int, ...]:
        return self.submit.prompt_ids[start:stop]


def replay(prompts: Sequence[Sequence[int]], capacity: int, make: Callable[[int], Allocator]) -> HitRates:
    """Play ``prompts``, each a list of block ids, with room for ``capacity`` blocks.

    ``make(num_blocks)`` builds the allocator with blocks of ``BLOCK_SIZE``.  Of a prompt longer than the pool the
    beginning is stored.
    """
    allocator = make(capacity + 1)  # one for the token that every request still computes
    hits = first_hits = total = 0
    for number, prompt in enumerate(prompts):
        found = _pass(allocator, str(number), 2 * number + 1, prompt[:capacity])
        hits, first_hits, total = hits + found, first_hits + (found > 0), total + len(prompt)
    evictions = int(allocator.stats().get("evictions", 0))
    return HitRates(len(prompts), total, hits, first_hits, evictions)


def unlimited(prompts: Sequence[Sequence[int]]) -> int:
    """A capacity at which nothing is ever evicted."""
    return sum(len(prompt) for prompt in prompts)


def _pass(allocator: Allocator, rid: str, step: int, blocks: Sequence[int]) -> int:
    """One request comes, computes what is not cached, and goes; returns how many blocks were."""
    ids = (*(token for block in blocks for token in (block, 0)), 0)
    submit = Submit(rid, ids, SamplingParams(max_tokens=1))
    cached = allocator.draft().match(RequestView(Prompt(submit)))
    started = Started(rid, ids, len(ids), cached, submit.sampling)
    row = Row(rid, cached, len(ids) - cached, ids[cached:], True)
    allocator.handle(StepPlan(step, (row,), (started,)), 0.0)
    allocator.handle(StepResult(step, (rid,), (0,)), 0.0)
    allocator.handle(StepPlan(step + 1, (), released=(rid,)), 0.0)
    return cached // BLOCK_SIZE
