"""The host's record of one request: known against computed tokens, and the lifecycle table."""

from __future__ import annotations

from ...core.messages import FinishReason, Submit, Timing, Usage
from ...core.request import RequestView, Status

#: The lifecycle table: which moves are legal.  Only the host moves a request.
LIFECYCLE: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


class Request:
    """Everything the host knows about one request.  Only the host mutates it."""

    def __init__(self, submit: Submit, seq: int, arrival: float, limit: int) -> None:
        self.submit, self.rid, self.seq, self.arrival = submit, submit.rid, seq, arrival
        self.limit = limit  # most tokens (prompt + output) this request may ever hold
        self.num_prompt_tokens = len(submit.prompt_ids)
        self.num_tokens = self.num_prompt_tokens  # known ones, and those that are being sampled
        sampling = submit.sampling
        #: Ids may end it: without a forced length, and unless it wants none of them.
        self.watches_ids = submit.forced_length is None and bool(sampling.stop_token_ids or not sampling.ignore_eos)
        self.output_ids: list[int] = []
        self.status = Status.WAITING
        self.patience: float | None = None  # paused, and until when it may keep its blocks
        self.num_computed_tokens = 0
        self.num_pending = 0  # ids being sampled in launched steps
        self.num_cached_tokens = 0  # of the prompt, at first admission
        self.num_preemptions = 0
        self.num_lost_tokens = 0  # computed before the last preemption, and not taken back since
        self.first_scheduled: float | None = None
        self.first_token: float | None = None
        self.view = RequestView(self)

    @property
    def num_known_tokens(self) -> int:
        """Prompt and delivered output: the tokens whose ids the host knows."""
        return self.num_prompt_tokens + len(self.output_ids)

    def remaining(self) -> int:
        """Known but not computed: what it could be given now.  0 when paused, when the ids in flight will end it by
        length, or (preempted) while one of its ids is still being sampled."""
        if self.num_tokens >= self.limit or self.patience is not None:
            return 0
        if self.num_pending and self.status is not Status.RUNNING:
            return 0
        return self.num_tokens - self.num_computed_tokens

    num_remaining_tokens = property(remaining)  # for views; the loops over all rows call it without this detour

    def known_ids(self, start: int, stop: int) -> tuple[int, ...]:
        """Ids at positions ``start`` to ``stop`` (exclusive) of prompt + output."""
        num_prompt = self.num_prompt_tokens
        output = self.output_ids[max(0, start - num_prompt) : max(0, stop - num_prompt)]
        return self.submit.prompt_ids[start:stop] + tuple(output)

    def full(self) -> FinishReason | None:
        """The end by length, once there are as many tokens as may ever be."""
        return FinishReason.LENGTH if self.num_tokens - self.num_pending >= self.limit else None

    def move(self, status: Status) -> None:
        """Follow the lifecycle table; an illegal move is a bug and raises AssertionError."""
        assert status in LIFECYCLE[self.status], f"{self.rid}: {self.status.value} -> {status.value}"
        self.status = status

    def usage(self) -> Usage:
        return Usage(self.num_prompt_tokens, self.num_cached_tokens, len(self.output_ids))

    def timing(self, now: float) -> Timing:
        return Timing(self.arrival, self.first_scheduled, self.first_token, now)
