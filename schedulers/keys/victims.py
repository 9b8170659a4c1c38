"""Whom to preempt when a running request needs blocks: pluggable keys, the smallest first.

``latest`` (admitted last) keeps the work of those who came first; ``least_computed`` throws away the least work;
``most_computed`` and ``random`` are there to be compared with; ``lowest_priority`` takes ``priority`` low value first;
``longest_remaining`` frees room for the longest time.  A preempted request is recomputed later and loses no token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from ...core.policy import SchedulerView
from ...core.request import RequestView, Status

Victims = Literal["latest", "least_computed", "most_computed", "random", "lowest_priority", "longest_remaining"]

KEYS: dict[str, Callable[[RequestView], int]] = {
    "least_computed": lambda request: request.num_computed_tokens,
    "most_computed": lambda request: -request.num_computed_tokens,
    "lowest_priority": lambda request: -request.priority,
    "longest_remaining": lambda request: request.num_output_tokens - request.max_tokens,
}


def victims(choice: Victims, running: Sequence[RequestView], rng: Random) -> list[RequestView]:
    """``running``, given in order of admission, in the order in which to preempt them; ties by the latest admitted."""
    order = list(reversed(running))
    if choice == "random":
        rng.shuffle(order)
    elif choice != "latest":
        order.sort(key=KEYS[choice])
    return order


def for_running(choice: Victims, rng: Random) -> Callable[[SchedulerView, int, RequestView], Sequence[str]]:
    """A ``select_victims`` hook that serves running requests only; a waiting one never displaces anybody."""

    def select_victims(view: SchedulerView, _need_blocks: int, for_request: RequestView) -> Sequence[str]:
        if for_request.status is not Status.RUNNING:
            return ()
        return [request.rid for request in victims(choice, view.running, rng)]

    return select_victims
