"""Whether a decision may be carried out, and what is done instead if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from ...core.config import SchedulerConfig
from ...core.policy import Decision
from .record import Request


class Books(Protocol):
    """What the host knows."""

    config: SchedulerConfig
    records: dict[str, Request]
    running: dict[str, Request]
    admitting: bool

    @property
    def num_in_flight(self) -> int: ...


def fault_of(decision: Decision, books: Books, now: float) -> str:
    """Why the decision cannot be used, or ``""``."""
    running, limits = books.running, books.config
    victims: set[str] = set()
    for rid in decision.preempt:
        if rid not in running or rid in victims:
            return f"victim {rid!r} is not running or named twice"
        victims.add(rid)
    tokens = dict(decision.rows)
    newcomers = [rid for rid in tokens if rid not in running]
    if not _are_good(tokens, newcomers, len(decision.rows), victims, books):
        return _row_fault(decision, victims, books)
    total, started = sum(tokens.values()), len(newcomers)
    if total > limits.token_budget:
        return f"{total} tokens planned, the budget is {limits.token_budget}"
    if started and len(running) - len(decision.preempt) + started > limits.max_running:
        return f"more than {limits.max_running} requests would run"
    if any(not isinstance(count, int) or count < 1 for count in decision.padding):
        return f"padding {decision.padding!r}"
    later = decision.wake_at is not None and decision.wake_at > now
    if not (decision.rows or decision.preempt or books.num_in_flight or later) and _could_go_on(books):
        return "nothing is scheduled although the engine is idle"
    return ""


def _are_good(
    tokens: Mapping[str, int], newcomers: Sequence[str], num_rows: int, victims: set[str], books: Books
) -> bool:
    """All rows at once, which is many times faster than one by one."""
    return (
        len(tokens) == num_rows
        and books.records.keys() >= frozenset(newcomers)
        and victims.isdisjoint(tokens)
        and {*map(type, tokens.values())} <= {int}
        and min(tokens.values(), default=1) >= 1
    )


def _row_fault(decision: Decision, victims: set[str], books: Books) -> str:
    """The first row that is wrong, and how."""
    seen = set(victims)
    for rid, count in decision.rows:
        if rid not in books.records or rid in seen:
            return f"{rid!r} is unknown, preempted or scheduled twice"
        if type(count) is not int or count < 1:
            return f"{rid!r} gets {count!r} tokens"
        seen.add(rid)
    raise AssertionError("every row is good")


def first_come(books: Books) -> Decision:
    """The safe default: running requests in order of admission, then the others in order of arrival."""
    running: Mapping[str, Request] = books.running
    budget, rows, slots = books.config.token_budget, [], max(0, books.config.max_running - len(running))
    newcomers = (one for one in books.records.values() if one.rid not in running and one.num_remaining_tokens)
    for request in (*running.values(), *(islice(newcomers, slots) if books.admitting else ())):
        if (count := min(request.num_remaining_tokens, budget)) > 0:
            rows.append((request.rid, count))
            budget -= count
    return Decision(rows)


def _could_go_on(books: Books) -> bool:
    """Somebody could be served now: a running request, or a waiting one with the pool to itself."""
    ready = any(request.num_remaining_tokens for request in books.running.values())
    return ready or (not books.running and bool(first_come(books).rows))
