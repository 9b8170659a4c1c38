"""Views that show a policy exactly what its contract names: touching anything else raises, and is remembered.

The kit hands these out instead of the real windows.  What a policy gives back is turned into the real view again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from ...core.policy import AllocationDraft, Event, SchedulerView
from ...core.request import RequestView


class Touch(NamedTuple):
    """Something a policy did that its contract does not allow: ``kind`` is ``reads``, ``writes`` or ``impure``."""

    kind: str
    what: str


class Forbidden(AttributeError):
    """The policy touched what its contract does not show."""


def _public(kind: type) -> frozenset[str]:
    return frozenset(name for name in dir(kind) if name[0] != "_")


class Strict:
    """Shows the public names of what it stands for, and nothing else."""

    __slots__ = ("_desk", "_inner")
    names: ClassVar[frozenset[str]] = frozenset()
    title: ClassVar[str] = ""

    def __init__(self, inner: Any, desk: Desk) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_desk", desk)

    def __getattribute__(self, name: str) -> Any:
        kind = type(self)
        if name in kind.names:
            inner, desk = reveal(self), object.__getattribute__(self, "_desk")
            special = kind.__dict__.get("show_" + name)
            return special(self, inner, desk) if special else getattr(inner, name)
        if name[:2] == "__":
            return object.__getattribute__(self, name)
        return object.__getattribute__(self, "_desk").refuse("reads", f"{kind.title}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_desk").refuse("writes", f"{type(self).title}.{name}")

    def __delattr__(self, name: str) -> None:
        object.__getattribute__(self, "_desk").refuse("writes", f"{type(self).title}.{name}")

    def __repr__(self) -> str:
        return repr(reveal(self))


class StrictRequest(Strict):
    """A ``RequestView`` and no more."""

    __slots__ = ()
    names = _public(RequestView)
    title = "request"


class StrictDraft(Strict):
    """An ``AllocationDraft`` whose ``match`` takes strict requests."""

    __slots__ = ()
    names = _public(AllocationDraft)
    title = "draft"

    def show_match(self, inner: Any, desk: Desk) -> Any:
        return lambda request: inner.match(reveal(request))


class StrictView(Strict):
    """A ``SchedulerView`` whose requests are strict too."""

    __slots__ = ()
    names = _public(SchedulerView)
    title = "view"

    def show_running(self, inner: Any, desk: Desk) -> Any:
        return tuple(desk.hand_out(request) for request in inner.running)

    def show_waiting(self, inner: Any, desk: Desk) -> Any:
        waiting = inner.waiting
        handed: Iterator[Any] = map(desk.hand_out, waiting)
        return tuple(handed) if isinstance(waiting, tuple | list) else handed

    def show_cached_prefix_tokens(self, inner: Any, desk: Desk) -> Any:
        return lambda request: inner.cached_prefix_tokens(reveal(request))

    def show_held_blocks(self, inner: Any, desk: Desk) -> Any:
        return lambda request: inner.held_blocks(reveal(request))

    def show_draft(self, inner: Any, desk: Desk) -> Any:
        return lambda: StrictDraft(inner.draft(), desk)


class Desk:
    """Hands out strict views, always the same one for the same request, and keeps the list of touches."""

    def __init__(self) -> None:
        self.touches: list[Touch] = []
        self._requests: dict[int, tuple[RequestView, StrictRequest]] = {}

    def refuse(self, kind: str, what: str) -> Any:
        """Remember and raise."""
        self.touches.append(Touch(kind, what))
        raise Forbidden(f"the policy {kind} {what}, which its contract does not allow")

    def hand_out(self, value: Any) -> Any:
        """The strict form of a hook's argument; numbers and names stay as they are."""
        if isinstance(value, RequestView):
            if id(value) not in self._requests:
                self._requests[id(value)] = (value, StrictRequest(value, self))
            return self._requests[id(value)][1]
        if isinstance(value, SchedulerView):
            return StrictView(value, self)
        if isinstance(value, Event):
            return value._replace(request=self.hand_out(value.request))
        return value


def reveal(value: Any) -> Any:
    """The real view behind a strict one; anything else as it is."""
    return object.__getattribute__(value, "_inner") if isinstance(value, Strict) else value


def kept_views(value: Any, depth: int = 6) -> bool:
    """True if ``value`` (a policy's state) holds a view, directly or inside plain containers and objects."""
    if isinstance(value, Strict | RequestView | SchedulerView):
        return True
    if depth == 0 or isinstance(value, str | bytes | int | float | None):
        return False
    if isinstance(value, dict):
        return any(kept_views(item, depth - 1) for pair in list(value.items()) for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return any(kept_views(item, depth - 1) for item in list(value))
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return any(kept_views(item, depth - 1) for item in list(vars(value).values()))
