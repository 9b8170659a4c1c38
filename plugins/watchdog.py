"""Ends a Python call that never returns, in the thread that makes it.

``watchdog(function, *arguments)`` calls the function.  If it has not returned within the limit, a daemon thread raises
a private exception inside it, again and again until it ends; the caller gets ``TimeoutError``.  Outside such a call
nothing is ever raised.  A call leaves a token on a list; who takes it off first decides: the call on its way out, or
the thread, which from then on may raise until the call has settled with it under a lock.  What was sent but not yet
delivered by then is taken back.  So a call that ends in time needs no lock.

Such an exception waits for the next Python instruction.  So a call that is blocked inside C (sleeps, waits for a lock)
gets a signal as well, which makes it look: that works in the main thread, where `mainspring serve` has its event loop.
Elsewhere it is ended when it comes back by itself; C code that keeps the interpreter to itself cannot be ended at all.
"""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

#: Seconds between attempts once a call is overdue: the first may land in a ``try`` that swallows everything.
_AGAIN_S = 0.01
#: How often the thread looks within the limit; a call is ended at most one look late.
_LOOKS = 8
#: Means nothing to a process that has not asked for it.
_SIGNAL = signal.SIGURG


class _Overdue(BaseException):
    """Raised inside the overdue call; not an ``Exception``, so that ``except Exception`` in it does not help."""


class Watchdog:
    """Watches one thread's calls, one at a time; a call made within a watched call belongs to it.

    ``close`` (or leaving the ``with`` block) ends the thread.
    """

    def __init__(self, limit_s: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._now = now
        self._busy = False
        self._caller = 0  # the thread that makes the present call
        self._tokens: list[int] = []  # the present call's number, until it ends or is overdue
        self._calls = 0
        self._seen = (0, 0.0)  # (number, clock value in seconds) when the thread first saw the present call
        self._lock = threading.Lock()
        self._overdue = False  # the thread has taken the token
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """``function(*arguments)``; raises TimeoutError in its place if it does not return in time."""
        if self._busy:
            return function(*arguments)
        if self._thread is None:
            self._start()
        self._busy = True
        self._caller = threading.get_ident()
        self._calls += 1
        try:
            try:
                self._tokens.append(self._calls)
                return function(*arguments)
            finally:
                try:
                    self._tokens.pop()
                except IndexError:  # the thread has it
                    self._settle()
        except _Overdue:
            self._settle()
            raise TimeoutError(f"did not return within {self.limit_s:g} s") from None
        finally:
            self._busy = False

    def look(self) -> float:
        """Interrupt the present call if it is overdue; returns the seconds until it is worth looking again."""
        with self._lock:
            now, number = self._now(), self._calls
            if not self._overdue:
                if not self._tokens or number != self._seen[0]:
                    self._seen = number, now
                    return self.limit_s / _LOOKS
                if now - self._seen[1] < self.limit_s or not self._claim(number):
                    return self.limit_s / _LOOKS
                self._overdue = True
            _raise_in(self._caller, _Overdue)
            if self._caller == threading.main_thread().ident:
                signal.pthread_kill(self._caller, _SIGNAL)
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

    def _start(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            signal.signal(_SIGNAL, _look_up)
        self._thread = threading.Thread(target=self._run, name="mainspring-watchdog", daemon=True)
        self._thread.start()

    def _claim(self, number: int) -> bool:
        """Take the token of call ``number``; False if that call has ended.  Taking from a list is indivisible."""
        try:
            taken = self._tokens.pop()
        except IndexError:
            return False
        if taken != number:  # of a call that has begun meanwhile: it gets its token back
            self._tokens.append(taken)
            return False
        return True

    def _settle(self) -> None:
        """After this nothing can be raised any more; what arrives meanwhile is too late and is dropped."""
        while True:
            try:
                with self._lock:
                    self._overdue = False
                    self._tokens.clear()
                    _raise_in(self._caller, None)
                return
            except _Overdue:
                continue

    def _run(self) -> None:
        while not self._closed.wait(self.look()):
            pass


def _look_up(_number: int, _frame: object) -> None:
    """Python code to run in the middle of a blocked call: there what was raised from outside arrives."""


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have ``kind`` raised in another thread at its next bytecode; None takes back what was not delivered yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
