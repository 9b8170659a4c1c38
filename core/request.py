"""What a policy may know of a request: a read-only window on the scheduler actor's record.

One progress notion only: *known* tokens (prompt, output, and ids being sampled right now) against *computed* tokens
(whose keys and values are in the cache, counting work in flight).  There are no prefill and decode phases.
"""

from __future__ import annotations

import enum
from operator import attrgetter
from typing import Any


class Status(enum.Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


def window(path: str) -> Any:
    """A read-only attribute that shows ``path`` of what stands behind the view."""
    return property(attrgetter("_behind." + path))


class RequestView:
    """What a policy may know of a request: never the future, never what is in flight, never writable."""

    __slots__ = ("_behind",)

    def __init__(self, request: Any) -> None:
        self._behind = request

    def __repr__(self) -> str:
        return f"<request {self.rid} {self.status.value} {self.num_computed_tokens}/{self.num_tokens}>"

    rid: str = window("rid")
    seq: int = window("seq")  # arrival number: the last tie-break, unique
    arrival: float = window("arrival")  # clock value in seconds
    prompt_ids: tuple[int, ...] = window("submit.prompt_ids")
    tenant: str = window("submit.tenant")
    priority: int = window("submit.priority")
    deadline: float | None = window("submit.deadline")  # clock value in seconds
    cache_salt: str = window("submit.cache_salt")
    read_cache: bool = window("submit.read_cache")
    max_tokens: int = window("submit.sampling.max_tokens")
    status: Status = window("status")
    num_prompt_tokens: int = window("num_prompt_tokens")
    num_tokens: int = window("num_tokens")  # known tokens; one that is being sampled counts
    num_computed_tokens: int = window("num_computed_tokens")
    num_remaining_tokens: int = window("num_remaining_tokens")
    num_preemptions: int = window("num_preemptions")
    first_scheduled: float | None = window("first_scheduled")

    @property
    def num_output_tokens(self) -> int:
        return len(self._behind.output_ids)

    @property
    def output_ids(self) -> tuple[int, ...]:
        """Ids delivered so far."""
        return tuple(self._behind.output_ids)

    def known_ids(self) -> tuple[int, ...]:
        """Prompt and delivered output."""
        return tuple(self._behind.known_ids(0, self._behind.num_known_tokens))
