"""The executor's own threads: steps in by a queue, results out by a post into the event loop.

The first thread brings each step to the executor.  A second one posts results while the first brings the next step:
those of an executor that begins and ends steps apart (``overlap``), for which it waits, and those behind which a step
waits already.  What begins at once behind a step that runs goes to neither: the event loop's thread brings it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio.to_thread
import structlog

from ...core.errors import EngineFault
from ...core.messages import Down, Message, StepLaunch, StepResult
from ...core.policy import Executor, ExecutorInfo, SampleOutput
from .overlap import Pending, begin, begins_at_once

log = structlog.get_logger("mainspring.executor")
CLOSE_TIMEOUT_S = 10.0


def is_out_of_memory(error: BaseException) -> bool:
    """Python's own error, or one of torch's, which has none for the CPU."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text


class ExecutorThread:
    """Implements ``core.edge.ExecutorEdge`` over a ``core.policy.Executor``."""

    def __init__(
        self,
        executor: Executor,
        post: Callable[[Message], None],
        now: Callable[[], float],
        load_limit_s: float | None = None,
    ) -> None:
        """``post`` must be safe to call from this thread; ``now`` gives clock seconds.  ``load_limit_s``: a load that
        has not ended after it counts as hung; None: it may take any time."""
        self.load_limit_s, self.load_s = load_limit_s, 0.0
        self.executor = executor
        self._post, self._now = post, now
        self._sample: Callable[[Any, Any], SampleOutput] | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._launched: deque[float] = deque()  # of each step without a result, oldest first
        self._abandoned = self._closing = False
        self._memory: dict[str, int] = {}  # bytes by column, as loaded
        self._begun: queue.SimpleQueue[tuple[StepLaunch, Message | Pending] | None] = queue.SimpleQueue()
        self._num_given = self._num_done = 0  # steps given to the first thread, and those it is done with
        self._handed_over = self._posted = 0  # results given to the second thread, and posted by it
        self._waiter: threading.Thread | None = None
        self._thread = threading.Thread(target=self._loop, name="mainspring-executor", daemon=True)
        self._thread.start()

    async def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """See ``ExecutorEdge.load``.  Raises EngineFault for a load that hangs; its thread is left behind."""
        begun = self._now()
        try:
            async with asyncio.timeout(self.load_limit_s) as limit:
                info = await self._load(progress)
        except TimeoutError:
            if not limit.expired():  # the load's own, for instance of a file on a network
                raise
            self.abandon()
            raise EngineFault(f"the load has not ended within {self.load_limit_s:g} s") from None
        self.load_s = self._now() - begun
        return info

    async def _load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[ExecutorInfo] = loop.create_future()

        def settle(result: ExecutorInfo | BaseException) -> None:
            if loaded.cancelled():
                return
            if isinstance(result, BaseException):
                loaded.set_exception(result)
            else:
                loaded.set_result(result)

        def work() -> None:
            try:
                info = self.executor.load(progress)
                self._memory = dict(info.memory)
                result: ExecutorInfo | BaseException = info
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the load
                result = error
            with contextlib.suppress(RuntimeError):  # the loop has ended: it hung so long that nobody waits any more
                loop.call_soon_threadsafe(settle, result)

        self._inbox.put(work)
        return await loaded

    def serve(self, sample: Callable[[Any, Any], SampleOutput]) -> None:
        self._sample = sample

    def deliver(self, message: Message) -> None:
        assert isinstance(message, StepLaunch)
        if message.rows:
            self._launched.append(self._now())
        # Behind a step that runs, with none before it on the first thread: begun here, which takes half the time.  What
        # it looks at has just been made by this thread, and nobody has to wake up.
        free = self._num_given == self._num_done and self._handed_over > self._posted and not self._closing
        if free and self._sample and begins_at_once(self.executor, message, self._sample):
            self._step(message, alone=False)
            return
        self._num_given += 1
        self._inbox.put(lambda: self._take(message))

    def stalled_for(self) -> float:
        try:
            oldest = self._launched[0]
        except IndexError:  # none; to ask first would not help: the last may end meanwhile, on the executor's thread
            return 0.0
        return self._now() - oldest

    def abandon(self) -> None:
        self._abandoned = self._closing = True
        self._inbox.put(None)

    async def close(self) -> None:
        self._closing = True
        self._inbox.put(None)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join, CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.error("executor_left_behind")

    def _loop(self) -> None:
        while (task := self._inbox.get()) is not None and not self._abandoned:
            task()
        if self._waiter is not None:
            self._begun.put(None)
            self._waiter.join()
        self.executor.close()

    def _out_of_memory(self, launch: StepLaunch, error: BaseException) -> StepResult:
        """The step's requests end with an error, the engine goes on; plan and ledger are written down."""
        plan = {row.rid: (row.start, row.count, len(row.block_table)) for row in launch.rows}
        log.error("out_of_memory", step=launch.step, error=str(error), memory=self._memory, plan=plan)
        now = self._now()
        failed = tuple((row.rid, f"out of memory in step {launch.step}") for row in launch.rows)
        return StepResult(launch.step, (), (), failed, now, now)

    def _take(self, launch: StepLaunch) -> None:
        self._step(launch, alone=self._handed_over == self._posted and self._inbox.empty())
        self._num_done += 1

    def _step(self, launch: StepLaunch, alone: bool) -> None:
        sample = self._sample
        assert sample is not None
        begun = self._attempt(launch, lambda: begin(self.executor, launch, sample, alone))
        # To post wakes the event loop, which then holds the interpreter while it has work: not before the next step.
        if isinstance(begun, Message) and self._handed_over == self._posted and self._inbox.empty():
            self._report(launch, begun)
            return
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._wait, name="mainspring-executor-results", daemon=True)
            self._waiter.start()
        self._handed_over += 1
        self._begun.put((launch, begun))  # behind those that have not ended

    def _wait(self) -> None:
        while (item := self._begun.get()) is not None:
            launch, begun = item
            self._report(launch, begun if isinstance(begun, Message) else self._attempt(launch, begun.result))
            self._posted += 1

    def _attempt(self, launch: StepLaunch, run: Callable[[], Any]) -> Any:
        """What ``run`` returns, or the message that says how the step failed."""
        try:
            return run()
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error):
                return self._out_of_memory(launch, error)
            log.exception("step_failed", step=launch.step)
            return Down("executor", f"{type(error).__name__}: {error}", launch.step)

    def _report(self, launch: StepLaunch, result: Message) -> None:
        if launch.rows:
            self._launched.popleft()
        if not self._abandoned and (launch.rows or isinstance(result, Down)):
            self._post(result)
