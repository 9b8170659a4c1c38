"""What a policy's hook may answer: each check turns an answer into data that the planner can trust, or raises.

A check runs inside the guard, so an answer that is lazy, endless or of the wrong kind costs one decision like an
exception does.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from ...core.policy import Decision

#: No answer names more requests than this.
MOST = 100_000
MOST_TOKENS = 2**40


def _many(answer: Any, what: str) -> tuple[Any, ...]:
    """A bounded copy of an iterable that is not text."""
    if isinstance(answer, str | bytes) or not isinstance(answer, Iterable):
        raise TypeError(f"answered {type(answer).__name__}, expected {what}")
    items = tuple(islice(answer, MOST + 1))
    if len(items) > MOST:
        raise ValueError(f"answered more than {MOST} items")
    return items


def _rids(answer: Any) -> tuple[str, ...]:
    items = _many(answer, "rids")
    for item in items:
        if not isinstance(item, str):
            raise TypeError(f"{item!r} is not a rid")
    return items


def _optional_rids(answer: Any) -> tuple[str, ...] | None:
    return None if answer is None else _rids(answer)


def _named(answer: Any) -> tuple[str, ...]:
    return () if answer is None else _rids(answer)


def _reason(answer: Any) -> str | None:
    if answer is not None and not isinstance(answer, str):
        raise TypeError(f"answered {type(answer).__name__}, expected None or a reason")
    return answer


def _hashable(answer: Any) -> Any:
    hash(answer)
    return answer


def _key(answer: Any) -> Any:
    """Immutable, equal to itself and not less than itself, which NaN and sets of rules without order are not."""
    hash(answer)
    if not (answer == answer) or answer < answer:
        raise ValueError(f"{answer!r} is no key: it does not equal itself")
    return answer


def _caps(answer: Any) -> dict[str, int] | None:
    if answer is None:
        return None
    if not isinstance(answer, Mapping):
        raise TypeError(f"answered {type(answer).__name__}, expected rid -> tokens")
    return dict(islice(answer.items(), MOST))


def _tokens(answer: Any) -> int:
    """An estimate: half a token counts as one."""
    if type(answer) not in (int, float) or not 0 <= answer < MOST_TOKENS:
        raise TypeError(f"answered {answer!r}, expected a number of tokens")
    tokens: int = math.ceil(answer)
    return tokens


def _decision(answer: Any) -> Decision | None:
    """Sequences that can be read twice; ``wake_at`` finite."""
    if answer is None:
        return None
    if not isinstance(answer, tuple) or len(answer) != len(Decision._fields):
        raise TypeError(f"answered {type(answer).__name__}, expected a Decision")
    rows, preempt, padding, reasons, wake_at = answer
    if not isinstance(reasons, Mapping):
        raise TypeError(f"reasons is {type(reasons).__name__}, expected rid -> text")
    if wake_at is not None and (type(wake_at) not in (int, float) or not math.isfinite(wake_at)):
        raise TypeError(f"wake_at = {wake_at!r}, expected a clock value")
    pairs = tuple((rid, count) for rid, count in _many(rows, "(rid, tokens) rows"))
    texts = {str(rid): str(why) for rid, why in islice(reasons.items(), MOST)}
    return Decision(pairs, _rids(preempt), _many(padding, "token counts"), texts, wake_at)


#: hook -> check.  Hooks without one answer whatever they like: it is not used, or checked where it is read.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "admit": _reason,
    "bucket": _hashable,
    "bucket_key": _key,
    "waiting_key": _key,
    "split_budget": _caps,
    "select_victims": _optional_rids,
    "reserve": _tokens,
    "on_event": _named,
    "schedule": _decision,
}


def checked(hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook and check what it answers.  Raises whatever the policy raised, TypeError or ValueError."""
    answer = function(*arguments)
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("a hook is a plain function, not a coroutine")
    check = CHECKS.get(hook)
    return answer if check is None else check(answer)
