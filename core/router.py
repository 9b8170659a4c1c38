"""Run-to-completion routing: pop a message, look up its type, queue what the handlers return, until nothing is left.

The same object is driven by asyncio in production and by a heap in the simulator.  A handler is a plain function of
``(message, now)``; it never awaits, so everything between two posts is atomic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from .clock import Clock
from .errors import EngineFault
from .messages import Message

Handler = Callable[[Message, float], Iterable[Message] | None]
Routes = Mapping[type[Message], Sequence[Handler]]
Tap = Callable[[Message, float], None]


class Router:
    """Routes by exact type.  ``taps`` see every message before its handlers do."""

    def __init__(self, clock: Clock, routes: Routes, taps: Sequence[Tap] = ()) -> None:
        self._clock, self._taps = clock, tuple(taps)
        self._routes = routes
        self._queue: deque[Message] = deque()
        self._running = False

    def set_routes(self, routes: Routes) -> None:
        """Replace the wiring, for a rebuild after a failure; drops what is queued for the old actors."""
        self._routes = routes
        self._queue.clear()

    def post(self, *messages: Message) -> None:
        """Queue ``messages`` and run until the queue is empty.  Re-entrant: a post from a handler only queues."""
        self._queue.extend(messages)
        if self._running:
            return
        self._running = True
        try:
            while self._queue:
                message = self._queue.popleft()
                now = self._clock.now()
                for tap in self._taps:
                    tap(message, now)
                handlers = self._routes.get(type(message))
                if handlers is None:
                    raise EngineFault(f"no route for {type(message).__name__}")
                for handler in handlers:
                    answer = handler(message, now)
                    if answer:
                        self._queue.extend(answer)
        finally:
            self._running = False
