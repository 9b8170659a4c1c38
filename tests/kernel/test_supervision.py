"""When the executor raises or hangs: one terminal each, a rebuild, and past the intensity the end."""

from __future__ import annotations

import errno
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from tests.support import config, submit

from mainspring.core.clock import MonotonicClock
from mainspring.core.config import ExecutorConfig
from mainspring.core.edge import KernelPort
from mainspring.core.errors import ConfigError, EngineFault
from mainspring.core.kernel import Kernel
from mainspring.core.messages import Emit, Finish, FinishReason, Message, StepLaunch
from mainspring.core.policy import ExecutorInfo
from mainspring.core.registry import Registry
from mainspring.plugins.executors.thread import ExecutorThread
from mainspring.plugins.testing.fake_executor import FakeExecutor

pytestmark = pytest.mark.anyio


class Sink:
    """An edge that collects the ends of requests."""

    name = "sink"
    consumes: tuple[type[Message], ...] = (Emit,)

    def __init__(self) -> None:
        self.ends: dict[str, Finish] = {}
        self.num_tokens = 0

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Emit)
        for row in message.rows:
            assert row.rid not in self.ends, f"{row.rid}: news after its end"
            self.num_tokens += len(row.token_ids)
            if row.finish is not None:
                self.ends[row.rid] = row.finish

    async def start(self, port: KernelPort) -> None: ...
    async def run(self, port: KernelPort) -> None:
        await anyio.sleep_forever()

    async def flush(self) -> None: ...

    async def until(self, count: int) -> None:
        while len(self.ends) < count:
            await anyio.sleep(0.002)


@asynccontextmanager
async def kernel(make: Callable[[], FakeExecutor], sink: Sink, **executor: object) -> AsyncIterator[Kernel]:
    settings = msgspec.structs.replace(
        config(4, token_budget=8),
        sampler=msgspec.structs.replace(config().sampler, use="scripted"),
        executor=ExecutorConfig(**executor),  # type: ignore[arg-type]
    )
    it = Kernel(
        settings,
        Registry(),
        MonotonicClock(),
        lambda kernel: ExecutorThread(make(), kernel.post_threadsafe, kernel.now),
        [sink],
    )
    with anyio.fail_after(60):
        async with it.running():
            yield it


def failing(steps: set[int], action: Callable[[], object]) -> Callable[[], FakeExecutor]:
    """Executors whose n-th step over all of them runs ``action`` for n in ``steps``."""
    count = 0

    def on_step(launch: StepLaunch) -> None:
        nonlocal count
        count += bool(launch.rows)
        if launch.rows and count in steps:
            action()

    return lambda: FakeExecutor(64, 4, on_step=on_step)


def boom() -> None:
    raise RuntimeError("boom")


async def test_a_raising_executor_is_rebuilt() -> None:
    """E-06, E-16, websocket E1: every accepted request, waiting ones too, gets exactly one terminal error."""
    sink = Sink()
    async with kernel(failing({5}, boom), sink) as it:
        first = it.actors
        it.post(*(submit(f"r{index}", 10) for index in range(12)))
        await sink.until(12)
        assert {end.reason for end in sink.ends.values()} == {FinishReason.ERROR}
        failure = sink.ends["r0"].failure
        assert failure is not None
        assert failure.code == "server_error"
        assert "boom" in failure.message
        while not it.ready:
            await anyio.sleep(0.002)
        assert it.actors is not first
        it.post(submit("again", 10, 3))
        await sink.until(13)
        assert sink.ends["again"].reason is FinishReason.LENGTH


async def test_submits_are_refused_while_rebuilding() -> None:
    sink, gate = Sink(), threading.Event()

    class Slow(FakeExecutor):
        def load(self, progress: Callable[[str], None]) -> object:  # type: ignore[override]
            if made > 1:
                gate.wait(10)
            return super().load(progress)

    made = 0

    def make() -> FakeExecutor:
        nonlocal made
        made += 1
        return Slow(64, 4, on_step=lambda launch: boom() if made == 1 and launch.rows else None)

    async with kernel(make, sink) as it:
        it.post(submit("A", 4))
        await sink.until(1)
        assert not it.ready
        assert it.healthy
        it.post(submit("B", 4))
        assert sink.ends["B"].failure.code == "overloaded"  # type: ignore[union-attr]
        gate.set()
        while not it.ready:
            await anyio.sleep(0.002)


async def test_out_of_memory_ends_the_requests_of_that_step_only() -> None:
    """Plan and ledger are logged; who was not in the step, and whoever comes next, is served."""

    def exhausted() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    sink = Sink()
    async with kernel(failing({3}, exhausted), sink) as it:
        actors = it.actors
        it.post(submit("A", 24, 9), submit("B", 20, 9))  # a budget of 8: step 3 is all A's
        await sink.until(2)
        assert sink.ends["A"].failure.code == "server_error"  # type: ignore[union-attr]
        assert "out of memory" in sink.ends["A"].failure.message  # type: ignore[union-attr]
        assert sink.ends["B"].reason is FinishReason.LENGTH
        assert it.actors is actors
        while it.stats()["kv_free_blocks"] != 64:
            await anyio.sleep(0.002)
        actors.check()  # type: ignore[union-attr]


async def test_a_hanging_executor_is_left_behind() -> None:
    """No result within stall_s: terminals, a fresh executor, and the late result of the old one is ignored."""
    sink, gate = Sink(), threading.Event()
    async with kernel(failing({3}, lambda: gate.wait(10)), sink, stall_s=0.1) as it:
        it.post(submit("A", 10))
        await sink.until(1)
        assert "stall_s" in sink.ends["A"].failure.message  # type: ignore[union-attr]
        while not it.ready:
            await anyio.sleep(0.002)
        it.post(submit("B", 10, 3))
        gate.set()
        await sink.until(2)
        assert sink.ends["B"].reason is FinishReason.LENGTH


async def test_too_many_failures_end_the_process() -> None:
    """Past the intensity the kernel stops with a clear message; the command line turns it into exit code 70."""
    sink = Sink()

    async def fail_again_and_again() -> None:
        async with kernel(failing({1, 2, 3, 4}, boom), sink, restarts=1, restart_window_s=60) as it:
            for index in range(4):
                it.post(submit(f"r{index}", 10))
                await sink.until(index + 1)
                while not it.ready:
                    await anyio.sleep(0.002)

    with pytest.raises(EngineFault, match="too often"):
        await fail_again_and_again()
    assert len(sink.ends) == 2


@pytest.mark.parametrize(("actor", "part"), [("allocator", "tables"), ("host", "planner"), ("host", "running")])
async def test_a_pure_actor_that_raises_is_treated_like_the_executor(actor: str, part: str) -> None:
    """Whatever its state has become, every accepted request gets its one terminal."""
    sink, gate = Sink(), threading.Event()
    async with kernel(failing({1}, lambda: gate.wait(5)), sink) as it:
        it.post(submit("A", 4))
        setattr(getattr(it.actors, actor), part, None)
        it.post(submit("more", 4))
        gate.set()
        await sink.until(1)
        assert sink.ends["A"].failure.code == "server_error"  # type: ignore[union-attr]
        while not it.ready:
            await anyio.sleep(0.002)
        it.post(submit("B", 4, 2))
        while "B" not in sink.ends:
            await anyio.sleep(0.002)
        assert sink.ends["B"].reason is FinishReason.LENGTH


async def test_a_failing_load_stops_the_start() -> None:
    class Broken(FakeExecutor):
        def load(self, progress: Callable[[str], None]) -> object:  # type: ignore[override]
            raise ConfigError("model.path: nothing there")

    with pytest.raises(ConfigError, match="nothing there"):
        async with kernel(lambda: Broken(8, 4), Sink()):
            raise AssertionError("it started")


async def test_an_edge_that_dies_is_restarted_alone() -> None:
    class Fragile(Sink):
        runs = 0

        async def run(self, port: KernelPort) -> None:
            self.runs += 1
            if self.runs == 1:
                raise RuntimeError("gateway died")
            await anyio.sleep_forever()

    sink = Fragile()
    async with kernel(lambda: FakeExecutor(64, 4), sink) as it:
        actors = it.actors
        it.post(submit("A", 4, 2))
        await sink.until(1)
        assert sink.runs == 2
        assert it.actors is actors


async def test_stop_ends_everything_and_drain_waits() -> None:
    sink = Sink()
    async with kernel(lambda: FakeExecutor(64, 4), sink) as it:
        it.post(submit("A", 4, 5))
        await it.drain(10)
        assert sink.ends["A"].reason is FinishReason.LENGTH
        it.post(submit("late", 4))
        assert sink.ends["late"].failure.code == "draining"  # type: ignore[union-attr]
    sink = Sink()
    gate = threading.Event()
    async with kernel(failing({1}, lambda: gate.wait(5)), sink) as it:
        it.post(submit("B", 4, 500))
        await it.drain(0)
        assert sink.ends["B"].reason is FinishReason.CANCELLED
        gate.set()


async def test_deadlines_pass_while_a_step_takes_long() -> None:
    sink, gate = Sink(), threading.Event()
    async with kernel(failing({2}, lambda: gate.wait(10)), sink, stall_s=0.4) as it:
        it.post(submit("A", 4, 50, deadline=it.now() + 0.05))
        await sink.until(1)
        assert sink.ends["A"].reason is FinishReason.DEADLINE
        gate.set()


@pytest.mark.parametrize("limit_s", [None, 60.0])
async def test_a_load_that_raises_a_timeout_of_its_own_has_not_hung(limit_s: float | None) -> None:
    """A file on a network that does not answer: ETIMEDOUT is a TimeoutError too, and says more."""

    class Unanswered(FakeExecutor):
        def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
            raise OSError(errno.ETIMEDOUT, "the share does not answer")

    thread = ExecutorThread(Unanswered(64, 4), lambda message: None, MonotonicClock().now, limit_s)
    with pytest.raises(TimeoutError, match="the share does not answer"):
        await thread.load(lambda line: None)
    await thread.close()
