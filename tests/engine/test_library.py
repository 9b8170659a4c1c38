"""The library: ``Engine`` and ``SyncEngine`` on a fake executor, with the real tokenizer."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

import mainspring
from mainspring.core.errors import ClientError, ConfigError, EngineFault
from mainspring.core.hookspecs import hookimpl
from mainspring.core.messages import Control, FinishReason
from mainspring.core.policy import AllocatorContext
from mainspring.core.registry import Registry
from mainspring.plugins.config_file import load
from mainspring.plugins.engine import Accepted, Delta, Ended, Engine, SyncEngine
from mainspring.plugins.executors import thread
from mainspring.plugins.testing.fake_executor import FakeExecutor, expected_ids

pytestmark = pytest.mark.anyio
VOCABULARY = 49152
QUIET = ["journal.path=", "sampler.use=scripted", "allocator.use=prefix", "allocator.block_size=4"]


def make(**options: Any) -> Callable[[], FakeExecutor]:
    return lambda: FakeExecutor(256, 4, vocab_size=VOCABULARY, **options)


def engine(**options: Any) -> Engine:
    return Engine(load(None, QUIET).config, make_executor=make(**options))


async def test_generate_and_stream() -> None:
    async with engine() as it:
        prompt = it.text.model.encode("Hello there")
        result = await it.generate({"prompt": "Hello there", "max_tokens": 5, "ignore_eos": True})
        assert list(result.token_ids) == expected_ids(tuple(prompt), 5, VOCABULARY)
        assert (result.finish_reason, result.usage.output, result.error) == (FinishReason.LENGTH, 5, None)
        events = [event async for event in it.stream({"prompt": "Hello there", "max_tokens": 5, "ignore_eos": True})]
        assert isinstance(events[0], Accepted)
        assert isinstance(events[-1], Ended)
        text = "".join(event.text for event in events if isinstance(event, Delta | Ended))
        assert text == result.text


async def test_streams_end_by_themselves_and_leave_each_other_alone() -> None:
    """A-11: fifty consumers and one more, whose waits are cut short while its request is kept out."""

    async def consume(index: int) -> tuple[tuple[int, ...], list[int]]:
        prompt, length, ids = tuple(range(5, 8 + index)), 1 + index % 7, list[int]()
        request = {"token_ids": prompt, "max_tokens": length, "ignore_eos": True, "return_token_ids": True}
        events = it.stream(request)
        async for event in events:
            if isinstance(event, Delta | Ended):
                ids += event.token_ids
        assert isinstance(event, Ended)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        return prompt, ids

    async with engine() as it:
        it.kernel.post(Control("hold"))
        late: asyncio.Queue[Any] = asyncio.Queue()
        it.text.open(it._check({"token_ids": [9, 9], "max_tokens": 3, "ignore_eos": True}), late.put_nowait)
        assert isinstance(await late.get(), Accepted)
        waits = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await late.get()
        assert asyncio.get_running_loop().time() - waits >= 0.1
        consumers = [asyncio.create_task(consume(index)) for index in range(50)]
        it.kernel.post(Control("release"))
        for prompt, ids in await asyncio.gather(*consumers):
            assert ids == expected_ids(prompt, len(ids), VOCABULARY)
            assert len(ids) == 1 + (len(prompt) - 3) % 7
        while not isinstance(event := await late.get(), Ended):
            assert isinstance(event, Delta)
        assert event.finish.usage.output == 3


async def test_refusals() -> None:
    """A15, D-05, F-01: schema errors raise, the engine's own refusals come as a result."""
    async with engine() as it:
        for bad in (
            {"prompt": "x", "temprature": 1},
            {"prompt": "x", "max_tokens": 0},
            {},
            {"prompt": "x", "token_ids": [1]},
        ):
            with pytest.raises(ClientError):
                await it.generate(bad)
        result = await it.generate({"token_ids": list(range(5000)), "max_tokens": 1})
        assert result.error is not None
        assert result.error["code"] in ("context_length_exceeded", "kv_capacity_exceeded")
        assert it.kernel.stats()["running"] == 0


async def test_leaving_a_stream_cancels() -> None:
    async with engine() as it:
        stream = it.stream({"prompt": "Hi", "max_tokens": 900, "ignore_eos": True})
        async for event in stream:
            if isinstance(event, Delta):
                break
        await stream.aclose()
        while it.kernel.stats()["running"]:
            await asyncio.sleep(0.001)
        assert it.kernel.stats()["finished_cancelled"] == 1


async def test_no_token_is_lost_when_a_receiver_times_out() -> None:
    """E-15: waits cut short at random moments lose nothing and reorder nothing."""
    rng = random.Random(5)
    async with engine() as it:
        request = {"token_ids": [5, 6, 7], "max_tokens": 300, "ignore_eos": True, "return_token_ids": True}
        queue: asyncio.Queue[Any] = asyncio.Queue()
        it.text.open(it._check(request), queue.put_nowait)
        ids: list[int] = []
        while True:
            try:
                async with asyncio.timeout(rng.random() * 0.002):
                    event = await queue.get()
            except TimeoutError:
                continue
            if isinstance(event, Delta | Ended):
                ids += event.token_ids
            if isinstance(event, Ended):
                break
        assert ids == expected_ids((5, 6, 7), 300, VOCABULARY)


async def test_fork() -> None:
    async with engine() as it:
        stream = it.stream(
            {"token_ids": [5, 6, 7, 8, 9], "max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
        )
        forks: list[asyncio.Task[Any]] = []
        seen: list[int] = []
        async for event in stream:
            if isinstance(event, Accepted):
                rid = event.rid
            if isinstance(event, Delta | Ended):
                seen += event.token_ids
            if len(seen) >= 3 and not forks:
                options = {"max_tokens": 6, "ignore_eos": True}
                forks = [asyncio.create_task(it.fork(rid, options)) for _ in range(2)]
        for fork in await asyncio.gather(*forks):
            prompt = (5, 6, 7, 8, 9, *seen[: fork.usage.input - 5])
            assert list(fork.token_ids) == expected_ids(prompt, 6, VOCABULARY)
            assert fork.usage.cached >= fork.usage.input - 1
        late = await it.fork(rid)
        assert late.error is not None
        assert late.error["code"] == "not_found"


async def test_tenants_share_nothing_with_a_salt() -> None:
    """B-02: the salt isolates the whole chain."""
    async with engine() as it:
        prompt = {"token_ids": list(range(5, 30)), "max_tokens": 1}
        first = await it.generate({**prompt, "cache_salt": "x"})
        other = await it.generate({**prompt, "cache_salt": "y"})
        again = await it.generate({**prompt, "cache_salt": "x"})
        assert (first.usage.cached, other.usage.cached, again.usage.cached) == (0, 0, 24)


async def test_a_wrong_choice_stops_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fcfs'"):
        Engine(overrides=["scheduler.use=fcfz"])
    with pytest.raises(ConfigError, match=r"scheduler\.options\.tickets"):
        Engine(overrides=["scheduler.options={tickets = 3}"])


def test_the_sync_shell() -> None:
    with SyncEngine(load(None, QUIET).config, make_executor=make()) as it:
        result = it.generate({"token_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True})
        assert list(result.token_ids) == expected_ids((5, 6, 7), 4, VOCABULARY)
        events = list(it.stream({"token_ids": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}))
        assert isinstance(events[-1], Ended)


def test_the_package_exports_the_library() -> None:
    assert mainspring.Engine is Engine
    with pytest.raises(AttributeError):
        mainspring.Engin  # noqa: B018


async def test_what_stops_a_start_is_raised_as_it_is() -> None:
    """D-07: not wrapped in a group, so that the command line can tell it in one line."""
    with pytest.raises(ConfigError, match="chat_template"):
        async with Engine(load(None, [*QUIET, "model.chat_template=/no/such/file"]).config, make_executor=make()):
            raise AssertionError("it started")


async def test_an_error_inside_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with engine():
            raise KeyError("mine")


async def test_an_observer_that_raises_disturbs_nobody() -> None:
    """F-08."""
    seen: list[str] = []

    class Sinks:
        @hookimpl
        def observe(self, message: Any, now: float) -> None:
            seen.append(type(message).__name__)
            raise ValueError("full")

    registry = Registry()
    registry.add(Sinks(), "test")
    async with Engine(load(None, QUIET).config, make_executor=make(), registry=registry) as it:
        result = await it.generate({"token_ids": [5, 6, 7], "max_tokens": 2, "ignore_eos": True})
    assert result.error is None
    assert "StepPlan" in seen


async def test_a_plugin_that_raises_on_stop_keeps_nobody_from_cleaning_up() -> None:
    """F-08."""
    said: list[str] = []

    class Tidy:
        def __init__(self, name: str, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        @hookimpl
        def on_start(self, kernel: Any) -> None:
            said.append(f"{self.name} sees {'ready' if kernel.ready else 'nothing'}")

        @hookimpl
        def on_stop(self, reason: str) -> None:
            said.append(f"{self.name} {reason}")
            if self.fails:
                raise ValueError("cannot tidy up")

    registry = Registry()
    for plugin in (Tidy("first"), Tidy("second", fails=True), Tidy("third")):
        registry.add(plugin, plugin.name)
    with capture_logs() as lines:
        async with Engine(load(None, QUIET).config, make_executor=make(), registry=registry):
            pass
    starts, stops = said[:3], said[3:]
    assert starts == ["third sees ready", "second sees ready", "first sees ready"]
    assert stops == ["third stopped", "second stopped", "first stopped"]
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["on_stop_failed"]


async def test_a_reload_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first load may take any time; one after a failure counts as hung like a step does."""
    monkeypatch.setattr(thread, "CLOSE_TIMEOUT_S", 0.05)  # the hung load is left behind
    release = threading.Event()
    made: list[FakeExecutor] = []

    class Hangs(FakeExecutor):
        def load(self, progress: Callable[[str], None]) -> Any:
            if len(made) > 1:
                release.wait(60)
            return super().load(progress)

    def boom(launch: Any) -> None:
        raise RuntimeError("boom")

    def executor() -> FakeExecutor:
        made.append(Hangs(256, 4, vocab_size=VOCABULARY, on_step=boom))
        return made[-1]

    async def fail_and_wait() -> None:
        config = load(None, [*QUIET, "executor.stall_s=0.3"]).config
        async with asyncio.timeout(60), Engine(config, make_executor=executor) as it:
            result = await it.generate({"token_ids": [5, 6, 7], "max_tokens": 2})
            assert result.error is not None and result.error["code"] == "server_error"
            await asyncio.sleep(60)

    try:
        with pytest.raises(EngineFault, match=r"could not be rebuilt: the load has not ended within [0-9.]+ s"):
            await fail_and_wait()
    finally:
        release.set()
    assert len(made) == 2


def test_a_load_that_ends_after_everything_else_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given up, and the event loop it would have told has been closed."""
    release, raised = threading.Event(), list[BaseException | None]()
    monkeypatch.setattr(threading, "excepthook", lambda arguments: raised.append(arguments.exc_value))

    class Hangs(FakeExecutor):
        def load(self, progress: Callable[[str], None]) -> Any:
            release.wait(60)
            return super().load(progress)

    async def give_up() -> thread.ExecutorThread:
        made = thread.ExecutorThread(Hangs(8, 4), lambda _message: None, time.monotonic, load_limit_s=0.01)
        with pytest.raises(EngineFault, match=r"has not ended within 0\.01 s"):
            await made.load(lambda _line: None)
        return made

    left_behind = asyncio.run(give_up())
    release.set()
    left_behind._thread.join(60)
    assert not left_behind._thread.is_alive() and raised == []


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("allocator.evict=odd", r"allocator\.evict = 'odd'.*valid: .*lru"),
        ("executor.memory=lots", r"executor\.memory = 'lots': expected a size such as '4GiB'"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(item: str, said: str) -> None:
    loaded: list[FakeExecutor] = []

    def executor() -> FakeExecutor:
        loaded.append(make()())
        return loaded[0]

    with pytest.raises(ConfigError, match=said):
        Engine(load(None, [*QUIET, item]).config, make_executor=executor)
    assert not loaded


def test_an_allocator_is_tried_on_a_small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """``allocator.num_blocks`` may be far more than this machine holds: only the executor can say."""
    tried: list[int] = []

    class Watched(Registry):
        def make(self, slot: str, use: str, options: Any, *arguments: Any, where: str = "") -> Any:
            tried.extend(given.num_blocks for given in arguments if isinstance(given, AllocatorContext))
            return None

    Engine(load(None, [*QUIET, f"allocator.num_blocks={2**48}"]).config, make_executor=make(), registry=Watched())
    Engine(load(None, [*QUIET, "allocator.num_blocks=7"]).config, make_executor=make(), registry=Watched())
    assert len(tried) == 2 and tried[0] <= 2**16 and tried[1] == 7


async def test_nothing_of_the_old_executor_is_held_while_the_new_one_is_made() -> None:
    """Weights that could not be held twice must be gone before they are read again."""
    made: list[weakref.ref[FakeExecutor]] = []
    held: list[bool] = []

    def boom(launch: Any) -> None:
        if len(made) == 1:
            raise RuntimeError("boom")

    def executor() -> FakeExecutor:
        held.extend(old() is not None for old in made)
        new = FakeExecutor(256, 4, vocab_size=VOCABULARY, on_step=boom)
        made.append(weakref.ref(new))
        return new

    with capture_logs():
        async with asyncio.timeout(60), Engine(load(None, QUIET).config, make_executor=executor) as it:
            failed = await it.generate({"token_ids": [5, 6, 7], "max_tokens": 2})
            assert failed.error is not None and failed.error["code"] == "server_error"
            while not it.kernel.ready:
                await asyncio.sleep(0.01)
            assert (await it.generate({"token_ids": [5, 6, 7], "max_tokens": 2})).error is None
    assert held == [False]
