"""The base of wrappers: what a wrapper does not say itself is the inner policy's own method, at no cost.

A policy that plans whole steps has no order to change: it is shown the waiting requests in the wrapper's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...core.policy import Decision, PolicyContext, SchedulerPolicy, SchedulerView
from ...core.request import RequestView


class _Waiting:
    """The waiting requests in a wrapper's order; each iteration starts at the first."""

    __slots__ = ("_order", "_view")

    def __init__(self, view: SchedulerView, order: Callable[[SchedulerView], Iterable[RequestView] | None]) -> None:
        self._view, self._order = view, order

    def __iter__(self) -> Iterator[RequestView]:
        ordered = self._order(self._view)
        return iter(self._view.waiting if ordered is None else ordered)


class _Reordered:
    """A ``SchedulerView`` in all but ``waiting``."""

    __slots__ = ("_view", "waiting")

    def __init__(self, view: SchedulerView, waiting: Iterable[RequestView]) -> None:
        self._view, self.waiting = view, waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


class Wrapper(SchedulerPolicy):
    """A policy around another.  Override hooks and call ``self.inner``; the others are taken from it as they are."""

    #: Promises of the inner policy that the wrapper does not keep.
    breaks: frozenset[str] = frozenset()

    def __init__(self, options: Any, context: PolicyContext, inner: SchedulerPolicy) -> None:
        super().__init__(options, context)
        self.inner = inner
        kept = {name: bound for name, bound in inner.claims.items() if name not in self.breaks}
        facts: dict[str, Any] = {"claims": {**kept, **self.claims}, "rekey": inner.rekey}
        for name, fact in facts.items():
            setattr(self, name, fact)
        for name, value in vars(SchedulerPolicy).items():
            if callable(value) and name[0] != "_" and getattr(type(self), name) is value:
                setattr(self, name, getattr(inner, name))
        if getattr(inner.schedule, "__func__", None) is not SchedulerPolicy.schedule:
            self.__dict__["schedule"] = self._plan_in_order

    def _plan_in_order(self, view: SchedulerView) -> Decision | None:
        """``schedule``, if the inner policy has one."""
        reordered: Any = _Reordered(view, _Waiting(view, self.order_waiting))
        return self.whole_step(reordered)

    def whole_step(self, view: SchedulerView) -> Decision | None:
        """The inner policy's whole step, on a view in the outermost wrapper's order."""
        return self.inner.whole_step(view) if isinstance(self.inner, Wrapper) else self.inner.schedule(view)

    def inner_order(self, view: SchedulerView) -> Iterable[RequestView]:
        """The waiting requests as the inner policy orders them."""
        ordered = self.inner.order_waiting(view)
        return view.waiting if ordered is None else ordered
