"""The executor's thread with an executor that begins steps and ends them later: what overlaps, in which order results
come, and what goes wrong where."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mainspring.core.clock import MonotonicClock
from mainspring.core.messages import Down, GrantedRow, Message, StepLaunch, StepResult
from mainspring.core.policy import SampleOutput
from mainspring.plugins.executors import overlap
from mainspring.plugins.executors.thread import ExecutorThread
from mainspring.plugins.testing.fake_executor import FakeExecutor

pytestmark = pytest.mark.anyio
WAIT_S = 20.0


@dataclass
class Step:
    """A step that ends when it is told to."""

    launch: StepLaunch
    end: threading.Event
    fails: Exception | None

    def result(self) -> StepResult:
        """See ``Pending.result``."""
        assert self.end.wait(WAIT_S)
        if self.fails:
            raise self.fails
        return StepResult(self.launch.step, (), ())


class Overlapping(FakeExecutor):
    """``begun`` steps, by number; ``ends`` lets one end; ``fails``: with what."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.ends = {step: threading.Event() for step in range(4)}
        self.fails: dict[int, Exception] = {}
        self.begun = [threading.Event() for _ in range(4)]
        self.at_once: set[int] = set()
        self.anywhere: set[int] = set()
        self.where: dict[int, str] = {}  # on which thread each was begun
        self.closed = threading.Event()

    def begin(self, launch: StepLaunch, sample: overlap.Sample, alone: bool) -> StepResult | Step:
        """See ``overlap.begin``."""
        self.where[launch.step] = threading.current_thread().name
        self.begun[launch.step].set()
        if launch.step in self.at_once:
            return StepResult(launch.step, (), ())
        return Step(launch, self.ends[launch.step], self.fails.get(launch.step))

    def begins_at_once(self, launch: StepLaunch, sample: overlap.Sample) -> bool:
        """See ``overlap.begins_at_once``."""
        return launch.step in self.anywhere

    def close(self) -> None:
        """See ``Executor.close``."""
        self.closed.set()


class Posts:
    """What the thread posts, in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._more = threading.Condition()

    def __call__(self, message: Message) -> None:
        with self._more:
            self.messages.append(message)
            self._more.notify_all()

    def until(self, count: int) -> list[Message]:
        """The first ``count``."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.messages) >= count, WAIT_S)
            return self.messages[:count]


def launch(step: int) -> StepLaunch:
    return StepLaunch(step, (GrantedRow(str(step), 0, 1, (5,), True, (0,), (0,)),), None)


def serve(executor: Overlapping) -> tuple[ExecutorThread, Posts]:
    posts = Posts()
    thread = ExecutorThread(executor, posts, MonotonicClock().now)
    thread.serve(lambda logits, plan: SampleOutput([], []))
    return thread, posts


def wait_for(happened: Callable[[float], bool]) -> None:
    assert happened(WAIT_S)


async def test_the_last_step_may_end_while_somebody_asks_how_long_it_takes() -> None:
    """Between the question whether there is a step and the look at it; the watchdog asks on the loop's thread."""
    executor = Overlapping()
    moments = iter([1.0, 5.0])

    def now() -> float:
        moment = next(moments)
        if moment > 1.0:
            executor.ends[0].set()
            posts.until(1)
        return moment

    posts = Posts()
    thread = ExecutorThread(executor, posts, now)
    thread.serve(lambda logits, plan: SampleOutput([], []))
    thread.deliver(launch(0))
    wait_for(executor.begun[0].wait)
    assert thread.stalled_for() == 4.0
    assert thread.stalled_for() == 0.0
    await thread.close()


async def test_a_result_behind_which_a_step_waits_is_posted_by_another_thread() -> None:
    """To post wakes the event loop, which would take the interpreter from the step that waits; others at once."""
    executor, posted, free = Overlapping(), list[tuple[int, str]](), threading.Event()
    executor.at_once = {0, 1, 2, 3}
    posts = Posts()

    def post(message: Message) -> None:
        assert isinstance(message, StepResult)
        if message.step == 0:
            assert free.wait(WAIT_S)  # the queue fills up meanwhile
        if message.step == 1:
            wait_for(executor.begun[2].wait)
        posted.append((message.step, threading.current_thread().name))
        posts(message)

    thread = ExecutorThread(executor, post, MonotonicClock().now)
    thread.serve(lambda logits, plan: SampleOutput([], []))
    thread.deliver(launch(0))
    wait_for(executor.begun[0].wait)
    thread.deliver(launch(1))
    thread.deliver(launch(2))
    free.set()
    posts.until(3)
    thread.deliver(launch(3))
    posts.until(4)
    await thread.close()
    first, own = posted[0], "mainspring-executor"
    assert [step for step, _ in posted] == [0, 1, 2, 3]
    assert first[1] == own or first[1] == own + "-results"  # whether step 1 had come by then
    assert posted[1] == (1, own + "-results")


async def test_a_step_is_begun_while_the_one_before_it_runs() -> None:
    executor = Overlapping()
    thread, posts = serve(executor)
    for step in (0, 1):
        thread.deliver(launch(step))
        wait_for(executor.begun[step].wait)
    assert posts.messages == []
    assert thread.stalled_for() > 0
    executor.ends[1].set()  # order stays
    executor.ends[0].set()
    assert [message.step for message in posts.until(2)] == [0, 1]  # type: ignore[attr-defined]
    assert thread.stalled_for() == 0
    await thread.close()


async def test_what_was_planned_ahead_is_begun_where_it_was_planned() -> None:
    """Only behind a step that runs, only if the executor can, and in order."""
    executor, here = Overlapping(), threading.current_thread().name
    executor.anywhere = {0, 2, 3}
    thread, posts = serve(executor)
    for step in range(3):
        thread.deliver(launch(step))
        wait_for(executor.begun[step].wait)
        while thread._num_done < min(step + 1, 2):
            await asyncio.sleep(0)
        assert thread.stalled_for() >= 0
    assert executor.where == {0: "mainspring-executor", 1: "mainspring-executor", 2: here}
    for end in executor.ends.values():
        end.set()
    posts.until(3)
    while thread._posted < thread._handed_over:
        await asyncio.sleep(0)
    thread.deliver(launch(3))  # behind nothing
    wait_for(executor.begun[3].wait)
    assert executor.where[3] == "mainspring-executor"
    assert [message.step for message in posts.until(4)] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    await thread.close()


async def test_nothing_is_begun_once_the_thread_is_told_to_end() -> None:
    """The event loop goes on while the threads end, and the executor behind them."""
    executor = Overlapping()
    executor.anywhere = {1}
    thread, posts = serve(executor)
    thread.deliver(launch(0))
    wait_for(executor.begun[0].wait)
    while thread._num_done < 1:
        await asyncio.sleep(0)
    closing = asyncio.create_task(thread.close())
    await asyncio.sleep(0)
    thread.deliver(launch(1))
    executor.ends[0].set()
    await closing
    assert set(executor.where) == {0}
    assert [message.step for message in posts.messages] == [0]  # type: ignore[attr-defined]


async def test_nothing_overtakes_a_step_that_the_first_thread_has_yet_to_begin() -> None:
    executor, busy = Overlapping(), threading.Event()
    executor.anywhere = {2}
    thread, posts = serve(executor)
    thread.deliver(launch(0))
    wait_for(executor.begun[0].wait)
    thread._inbox.put(lambda: wait_for(busy.wait))
    for step in (1, 2):
        thread.deliver(launch(step))
    assert set(executor.where) == {0}
    busy.set()
    for end in executor.ends.values():
        end.set()
    assert [message.step for message in posts.until(3)] == [0, 1, 2]  # type: ignore[attr-defined]
    assert executor.where[2] == "mainspring-executor"
    await thread.close()


async def test_a_step_that_is_over_at_once_waits_for_its_turn() -> None:
    executor = Overlapping()
    executor.at_once = {1}
    thread, posts = serve(executor)
    for step in (0, 1):
        thread.deliver(launch(step))
        wait_for(executor.begun[step].wait)
    assert posts.messages == []
    executor.ends[0].set()
    assert [message.step for message in posts.until(2)] == [0, 1]  # type: ignore[attr-defined]
    await thread.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("the device is lost"), Down("executor", "RuntimeError: the device is lost", 0)),
        (RuntimeError("CUDA out of memory"), None),
    ],
)
async def test_what_goes_wrong_in_a_step_belongs_to_it(error: Exception, expected: Down | None) -> None:
    executor = Overlapping()
    executor.fails[0] = error
    thread, posts = serve(executor)
    for step in (0, 1):
        thread.deliver(launch(step))
        executor.ends[step].set()
    first, second = posts.until(2)
    if expected is None:
        assert isinstance(first, StepResult)
        assert first.failed == (("0", "out of memory in step 0"),)
    else:
        assert first == expected
    assert isinstance(second, StepResult)
    assert second.step == 1
    await thread.close()


async def test_closing_waits_for_steps_that_run() -> None:
    executor = Overlapping()
    thread, posts = serve(executor)
    thread.deliver(launch(0))
    wait_for(executor.begun[0].wait)
    thread.abandon()  # ends its loop
    assert not executor.closed.wait(0.05)
    executor.ends[0].set()
    wait_for(executor.closed.wait)
    assert posts.messages == []  # nobody listens any more
    await thread.close()


async def test_an_executor_that_does_not_overlap_has_one_thread() -> None:
    posts = Posts()
    thread = ExecutorThread(FakeExecutor(8, 4), posts, MonotonicClock().now)
    thread.serve(lambda logits, plan: SampleOutput([3], []))
    await thread.load(lambda line: None)
    thread.deliver(launch(0))
    (result,) = posts.until(1)
    assert isinstance(result, StepResult)
    assert thread._waiter is None
    await thread.close()
