"""The text edge's record of one request between ``open`` and its ``Ended``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...core.messages import Submit
from ..schema import GenerateRequest, draw_seed, to_sampling
from .detokenize import Pieces
from .events import TextEvent
from .stream import TextStream

Sink = Callable[[TextEvent], None]


class Live:
    """One request between ``open`` and its ``Ended``."""

    __slots__ = (
        "accepted",
        "deadline",
        "num_chars",
        "num_prompt_tokens",
        "parent",
        "paused",
        "pending_ids",
        "received",
        "request",
        "rid",
        "sink",
        "submitted",
        "tenant",
        "text",
        "timer",
    )

    def __init__(
        self, rid: str, request: GenerateRequest, sink: Sink, tenant: str, received: float, parent: str | None = None
    ) -> None:
        self.parent = parent
        self.rid, self.request, self.sink, self.tenant, self.received = rid, request, sink, tenant, received
        self.deadline = None if request.deadline_ms is None else received + request.deadline_ms / 1000
        self.timer: asyncio.TimerHandle | None = None
        self.text: TextStream | None = None  # made with the first output ids
        self.submitted = self.accepted = self.paused = False
        self.num_prompt_tokens = self.num_chars = 0
        self.pending_ids: tuple[int, ...] = ()  # counted, but their text is not complete yet

    @property
    def num_prompt_chars(self) -> int:
        """Characters of text to encode."""
        if self.request.messages is not None:
            return sum(len(message["content"]) for message in self.request.messages)
        return len(self.request.prompt or "")

    @property
    def num_output_tokens(self) -> int:
        return 0 if self.text is None else self.text.num_tokens

    @property
    def stopped(self) -> bool:
        """A stop string matched; only the engine's confirmation is missing."""
        return self.text is not None and self.text.matched is not None

    def submit(self, prompt_ids: tuple[int, ...]) -> Submit:
        """Mark it submitted and make the message; a missing seed is drawn here, so the journal has the one used."""
        self.submitted, self.num_prompt_tokens = True, len(prompt_ids)
        if self.timer is not None:
            self.timer.cancel()
        request = self.request
        return Submit(
            rid=self.rid,
            prompt_ids=prompt_ids,
            sampling=to_sampling(request, draw_seed() if request.seed is None else request.seed),
            priority=request.priority,
            tenant=self.tenant,
            deadline=self.deadline,
            cache_salt=request.cache_salt,
            received=self.received,
            warm=request.warm,
            lease_s=request.lease_s,
            parent=self.parent,
        )

    def make_stream(self, pieces: Pieces) -> TextStream:
        request = self.request
        return TextStream(pieces, request.stop, request.min_tokens, request.skip_special_tokens)
