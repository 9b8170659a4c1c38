"""The watchdog ends a call that never returns, never touches anything else, and drops what would come too late."""

from __future__ import annotations

import contextlib
import queue
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mainspring.plugins.watchdog import Watchdog


class Hands:
    """A clock whose hands a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def dog(hands: Hands) -> Iterator[Watchdog]:
    with Watchdog(1.0, hands) as watchdog:
        yield watchdog


def test_an_answer_and_an_exception_pass_through(dog: Watchdog) -> None:
    assert dog(max, 1, 3) == 3
    with pytest.raises(ZeroDivisionError):
        dog(divmod, 1, 0)


def test_a_call_that_never_returns_is_ended() -> None:
    def forever() -> None:
        while True:
            try:
                sum(range(50))
            except Exception:  # noqa: BLE001
                continue

    with Watchdog(0.05) as watchdog:
        with pytest.raises(TimeoutError, match=r"did not return within 0\.05 s"):
            watchdog(forever)
        assert watchdog(len, "as before") == 9


def test_a_call_that_swallows_everything_is_ended_too() -> None:
    def stubborn() -> None:
        for _ in range(3):
            try:
                while True:
                    pass
            except BaseException:  # noqa: BLE001
                continue
        raise AssertionError("ended by itself")

    with Watchdog(0.05) as watchdog, pytest.raises((TimeoutError, AssertionError)):
        watchdog(stubborn)


BLOCKED: dict[str, Callable[[], object]] = {
    "sleep": lambda: time.sleep(3600),
    "lock": lambda: [lock := threading.Lock(), lock.acquire(), lock.acquire()],
    "event": lambda: threading.Event().wait(),
    "queue": lambda: queue.Queue[int]().get(),
    "select": lambda: select.select([], [], []),
}


@pytest.mark.parametrize("how", BLOCKED)
def test_a_call_that_is_blocked_inside_c_is_ended(how: str) -> None:
    """In the main thread, where the server's event loop would stand still for good."""
    before = signal.getsignal(signal.SIGURG)
    with Watchdog(0.05) as watchdog:
        with pytest.raises(TimeoutError):
            watchdog(BLOCKED[how])
        assert watchdog(len, "as before") == 9
    signal.raise_signal(signal.SIGURG)  # one that comes late does nothing
    assert before in (signal.SIG_DFL, signal.getsignal(signal.SIGURG))


def test_a_handler_that_is_there_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGURG, lambda number, frame: heard.append(number))
    try:
        with Watchdog(0.05) as watchdog, pytest.raises(TimeoutError):
            watchdog(time.sleep, 3600)
    finally:
        signal.signal(signal.SIGURG, before)


def test_nothing_is_raised_outside_a_call(dog: Watchdog, hands: Hands) -> None:
    dog(len, "")
    for _ in range(3):
        hands.now += 100.0
        assert dog.look() == 0.125
    assert sum(range(1000)) == 499500


def test_a_call_within_its_limit_is_left_alone(dog: Watchdog, hands: Hands) -> None:
    def slow() -> float:
        dog.look()
        hands.now += 0.75
        return dog.look()

    assert dog(slow) == 0.125


def test_an_overdue_call_is_ended_however_often_the_clock_is_asked(dog: Watchdog, hands: Hands) -> None:
    def too_slow() -> str:
        dog.look()
        hands.now += 1.25
        dog.look()
        return "too late"

    for _ in range(3):
        with pytest.raises(TimeoutError):
            dog(too_slow)


def test_calls_that_follow_each_other_are_not_taken_for_one(dog: Watchdog, hands: Hands) -> None:
    """Each is within the limit, however long they take together."""

    def short() -> str:
        dog.look()
        hands.now += 0.75
        return "in time"

    assert [dog(short) for _ in range(5)] == ["in time"] * 5


def test_an_interruption_that_arrives_after_the_call_returned_is_dropped(dog: Watchdog, hands: Hands) -> None:
    """Sent while the call ran, not delivered before it ended: taken back.

    Inside the watched call there is plain data only: an interruption between taking a lock and entering its block
    would leave it locked for good.
    """
    for _ in range(200):
        go, sent = list[bool](), threading.Event()

        def look(go: list[bool], sent: threading.Event) -> None:
            while not go:
                time.sleep(0)
            dog.look()
            sent.set()

        def returns_in_the_same_moment(go: list[bool]) -> str:
            dog.look()
            hands.now += 5.0
            go.append(True)
            return "an answer"

        threading.Thread(target=look, args=(go, sent)).start()
        with contextlib.suppress(TimeoutError):  # it was delivered in time
            assert dog(returns_in_the_same_moment, go) == "an answer"
        go.append(True)  # the watchdog's own thread may have been first
        sent.wait()
        assert sum(range(100)) == 4950


def test_a_call_within_a_call_belongs_to_the_outer_one(dog: Watchdog) -> None:
    assert dog(lambda: dog(lambda: dog(len, "abc"))) == 3


def test_closing_ends_the_thread() -> None:
    before = set(threading.enumerate())
    watchdog = Watchdog(1.0)
    watchdog(len, "")
    (own,) = set(threading.enumerate()) - before
    assert own.name == "mainspring-watchdog"
    watchdog.close()
    assert not own.is_alive()
