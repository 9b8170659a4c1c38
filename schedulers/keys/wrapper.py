"""The base of wrappers: what a wrapper does not say itself is the inner policy's own method, at no cost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...core.policy import PolicyContext, SchedulerPolicy, SchedulerView
from ...core.request import RequestView


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

    def inner_order(self, view: SchedulerView) -> Iterable[RequestView]:
        """The waiting requests as the inner policy orders them."""
        ordered = self.inner.order_waiting(view)
        return view.waiting if ordered is None else ordered
