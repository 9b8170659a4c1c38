"""Every call into a scheduling policy goes through here, so that a bad policy costs one step's decision at most.

An exception or an invalid answer is counted, logged with its reason and replaced by the safe default.  With a time
budget (``serve`` only, never in tests or simulation), three slow answers in a row replace the policy by the default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from ...core.clock import Clock
from ...core.policy import PolicyContext, SchedulerPolicy
from .answers import CHECKS, checked

log = structlog.get_logger("mainspring.scheduler")
SLOW_IN_A_ROW = 3

#: ``watch(function, *arguments)`` is ``function(*arguments)``, or raises TimeoutError if that never returns.
Watch = Callable[..., Any]


class Guard:
    """Holds the policy in use and calls its hooks."""

    def __init__(
        self,
        policy: SchedulerPolicy,
        name: str,
        clock: Clock | None = None,
        budget_s: float = 0.05,
        watch: Watch | None = None,
    ) -> None:
        self._use(policy, name)
        self.faults: Counter[str] = Counter()
        self._clock, self._budget_s, self._watch = clock, budget_s, watch
        self._slow: Counter[str] = Counter()  # hook -> slow answers in a row

    def overrides(self, hook: str) -> bool:
        """True if the policy has its own ``hook``, in its class or on the instance, so that defaults cost nothing."""
        return hook in self._own

    def call(self, hook: str, *arguments: Any) -> Any:
        """The policy's answer, or the base class's where it raises."""
        started = self._clock.now() if self._clock else 0.0
        try:
            answer = self.ask(hook, *arguments)
            if hook == "order_waiting" and isinstance(answer, Iterator) and self._watch is not None:
                answer = _watched(answer, self._watch)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a policy raises costs one answer
            self.reject(hook, f"{type(error).__name__}: {error}")
            answer = CHECKS.get(hook, _as_it_is)(getattr(SchedulerPolicy, hook)(self.policy, *arguments))
        if self._clock:
            self._slow[hook] = self._slow[hook] + 1 if self._clock.now() - started > self._budget_s else 0
            if self._slow[hook] >= SLOW_IN_A_ROW:
                self.replace(f"{hook} took over {self._budget_s * 1e3:.0f} ms {SLOW_IN_A_ROW} times in a row")
        return answer

    def ask(self, hook: str, *arguments: Any) -> Any:
        """The policy's own answer, checked; raises what it raised, and TimeoutError if it does not return."""
        function = getattr(self.policy, hook)
        if self._watch is None:
            return checked(hook, function, *arguments)
        return self._watch(checked, hook, function, *arguments)

    def reject(self, hook: str, reason: str) -> None:
        """Count and log an answer that is not used."""
        self.faults[hook] += 1
        log.warning("policy_fault", policy=self.name, hook=hook, reason=reason, count=self.faults[hook])

    def replace(self, reason: str) -> None:
        """Fall back to the default policy for good."""
        log.error("policy_replaced", policy=self.name, reason=reason)
        context = getattr(self.policy, "context", None) or PolicyContext(0, 0, 0, 0)
        self._use(SchedulerPolicy(None, context), f"default (was {self.name})")
        self._slow.clear()

    def _use(self, policy: SchedulerPolicy, name: str) -> None:
        self.policy, self.name = policy, name
        hooks = [hook for hook, value in vars(SchedulerPolicy).items() if callable(value)]
        self._own = frozenset(
            hook
            for hook in hooks
            if getattr(getattr(policy, hook), "__func__", None) is not getattr(SchedulerPolicy, hook)
        )


def _as_it_is(answer: Any) -> Any:
    return answer


def _watched(answer: Iterator[Any], watch: Watch) -> Iterator[Any]:
    """A lazy answer works when it is read, so each reading is a call into the policy too."""
    end = object()
    while (item := watch(next, answer, end)) is not end:
        yield item
