"""Ends a Python call that never returns, in the thread that makes it.

``watchdog(function, *arguments)`` calls the function.  If it has not returned within the limit, a daemon thread raises
a private exception inside it, again and again until it ends; the caller gets ``TimeoutError``.  Outside such a call
nothing is ever raised: arming, firing and disarming exclude each other by a lock, and an exception that was sent but
not yet delivered when the call returned by itself is taken back.

Only Python code can be interrupted: a call that is blocked inside C is ended as soon as it comes back from there.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

#: Seconds between attempts once a call is overdue: the first may land in a ``try`` that swallows everything.
_AGAIN_S = 0.01


class _Overdue(BaseException):
    """Raised inside the overdue call; not an ``Exception``, so that ``except Exception`` in it does not help."""


class Watchdog:
    """Watches one thread's calls, one at a time; a call made within a watched call belongs to it.

    ``close`` (or leaving the ``with`` block) ends the thread.
    """

    def __init__(self, limit_s: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._now = now
        self._lock = threading.Lock()
        self._armed: tuple[int, float] | None = None  # (thread, clock value in seconds) of the call that runs
        self._sent = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)``; raises TimeoutError in its place if it does not return in time."""
        if self._armed is not None:
            return function(*arguments)
        try:
            try:
                self._arm()
                return function(*arguments)
            finally:
                self._disarm()
        except _Overdue:
            self._disarm()
            raise TimeoutError(f"did not return within {self.limit_s:g} s") from None

    def look(self) -> float:
        """Interrupt the call that runs if it is overdue; returns the seconds until it is worth looking again."""
        with self._lock:
            if self._armed is None:
                return self.limit_s
            thread, since = self._armed
            if (left := since + self.limit_s - self._now()) > 0:
                return left
            self._sent = True
            _raise_in(thread, _Overdue)
            return _AGAIN_S

    def close(self) -> None:
        """End the thread.  A call that is being watched is not watched any more."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _arm(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mainspring-watchdog", daemon=True)
            self._thread.start()
        with self._lock:
            self._armed = threading.get_ident(), self._now()

    def _disarm(self) -> None:
        """After this nothing can be raised any more; what arrives meanwhile is too late and is dropped."""
        while True:
            try:
                with self._lock:
                    if self._sent and self._armed is not None:
                        _raise_in(self._armed[0], None)
                    self._armed, self._sent = None, False
                return
            except _Overdue:
                continue

    def _run(self) -> None:
        while not self._closed.wait(self.look()):
            pass


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have ``kind`` raised in another thread at its next bytecode; None takes back what was not delivered yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
