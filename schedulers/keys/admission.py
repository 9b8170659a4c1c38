"""How much room an admission needs: pluggable estimates behind the ``reserve`` hook, in tokens.

``prompt`` reserves the context known now: most requests run, some are preempted later.  ``final`` reserves the
longest output that was asked for: nobody is preempted, fewer run.  ``peak`` asks how full the pool will get: requests
end at different times, so the peak of all contexts together is below the sum of their final lengths.  A share kept
free for those who run (``scheduler.watermark``) goes with any of them.

How long an output will be, the last two take from ``max_tokens``, or from what finished requests had on average.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Literal

from ...core.policy import Event, SchedulerView
from ...core.request import RequestView, Status

Admission = Literal["prompt", "final", "peak"]
OutputEstimate = Literal["max_tokens", "average"]
Reserve = Callable[[RequestView, SchedulerView], int]

#: Weight of the newest finished request in the running average.
NEWEST = 1 / 16
#: Who has outgrown the average is expected to produce so much more than it has.
OUTGROWN = 1.1


def final_length(request: RequestView, longest_output: int) -> int:
    """Tokens it may hold at its end, believing in no more than ``longest_output``; never less than it holds now."""
    return max(request.num_tokens, request.num_prompt_tokens + min(request.max_tokens, longest_output))


class AverageOutput:
    """A running average of the output lengths of finished requests, in tokens; unknown before the first."""

    def __init__(self, longest_output: int) -> None:
        self.tokens: float | None = None
        self._longest_output = longest_output

    def learn(self, event: Event) -> None:
        """Those that ended before their first token say nothing about lengths."""
        if event.kind == "finished" and (length := event.request.num_output_tokens):
            self.tokens = length if self.tokens is None else self.tokens + NEWEST * (length - self.tokens)

    def longest(self, request: RequestView) -> int:
        """The most tokens of output that the estimates believe in; the request still gets all it asked for."""
        if self.tokens is None:
            return self._longest_output
        return min(self._longest_output, ceil(max(self.tokens, OUTGROWN * request.num_output_tokens)))


def peak_tokens(lengths: list[tuple[int, int]]) -> int:
    """The most tokens that requests of ``(tokens now, tokens to come)`` ever hold together, one token a step each.

    Sorted by what is to come, longest first: when the k-th of them ends, the first k have grown by as much as it.
    """
    peak = held = 0
    for count, (now, to_come) in enumerate(sorted(lengths, key=lambda pair: -pair[1]), start=1):
        held += now
        peak = max(peak, held + count * to_come)
    return peak


def estimate(admission: Admission, longest_output: Callable[[RequestView], int]) -> Reserve | None:
    """The ``reserve`` hook of that name; None for ``prompt``, which is the kernel's default."""

    def final(request: RequestView, _view: SchedulerView) -> int:
        return final_length(request, longest_output(request))

    def peak(request: RequestView, view: SchedulerView) -> int:
        if request.status is Status.RUNNING:
            return request.num_tokens
        batch = [*view.running, request]
        lengths = [(one.num_tokens, final_length(one, longest_output(one)) - one.num_tokens) for one in batch]
        return request.num_tokens + peak_tokens(lengths) - sum(now for now, _ in lengths)

    return {"prompt": None, "final": final, "peak": peak}[admission]
