"""A scenario as messages: prompts, prepared answers, and who may come when whom has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ...core.messages import SamplingParams, Submit
from ..traces.canonical import TraceRow, own_ids, prompt_ids
from ..workloads.scenario import Scenario
from .records import rid_of

#: Ids of an answer that tell it from all others; behind them comes the last one over and over.
_TELLING = 4


class Traffic:
    """What ``play`` sends.  ``known_lengths``: ``max_tokens`` is the true output length instead of the scenario's cap.

    A child whose prompt starts with its parent's prompt goes on where the parent's answer ends, so that answer is what
    the child's prompt says it is: a returning session finds its own answer in the cache.
    """

    def __init__(self, scenario: Scenario, seed: int, vocab_size: int, known_lengths: bool = False) -> None:
        self.scenario, self.rows = scenario, scenario.rows
        self._seed, self._vocab, self._known = seed, vocab_size, known_lengths
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        self._missing: list[int] = []  # parents of each row that have not ended
        self._ready_s: list[float] = []
        for number, row in enumerate(self.rows):
            parents = set(row.parents)
            for parent in parents:
                self._children[parent].append(number)
            self._missing.append(len(parents))
            self._ready_s.append(0.0 if parents else row.arrival_s)
        order = [number for number, missing in enumerate(self._missing) if not missing]
        self.roots = sorted(order, key=lambda number: self.rows[number].arrival_s)

    def ended(self, number: int, now: float) -> Iterable[tuple[float, int]]:
        """(arrival, row) of the rows for which ``number`` was the last to wait for."""
        for child in self._children.pop(number, ()):
            self._missing[child] -= 1
            self._ready_s[child] = max(self._ready_s[child], now)
            if not self._missing[child]:
                yield self._ready_s[child] + self.rows[child].delay_s, child

    def submit(self, number: int, arrival_s: float) -> Submit:
        """The request of a row."""
        row = self.rows[number]
        limits = self.scenario.slo.get(row.slo)
        length = row.output_tokens
        most = length if self._known else max(length, self.scenario.max_output)
        return Submit(
            rid_of(number),
            self.prompt(number),
            SamplingParams(max_tokens=most, ignore_eos=True),
            row.priority,
            row.tenant or "default",
            arrival_s + limits.deadline_s if limits is not None and limits.deadline_s else None,
            forced_length=length,
            received=arrival_s,
        )

    def prompt(self, number: int) -> tuple[int, ...]:
        """Prompt ids of a row."""
        return prompt_ids(self.rows[number], self._seed, self._vocab, number)

    def answer(self, number: int) -> Sequence[int]:
        """Output ids of a row, or the first of them (the last is repeated)."""
        row = self.rows[number]
        for child in self._children.get(number, ()):
            later = self.rows[child]
            if later.parent == number and continues(row, later):
                return self.prompt(child)[row.input_tokens : row.input_tokens + row.output_tokens]
        return own_ids(number, self._seed, min(row.output_tokens, _TELLING), self._vocab)


def continues(row: TraceRow, later: TraceRow) -> bool:
    """``later`` has ``row``'s prompt, and then more, as its own."""
    blocks = row.prefix_blocks
    return (
        0 < row.block_tokens == later.block_tokens
        and later.input_tokens > row.input_tokens
        and len(blocks) * row.block_tokens >= row.input_tokens
        and later.prefix_blocks[: len(blocks)] == blocks
    )
