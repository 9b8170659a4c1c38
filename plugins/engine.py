"""The composition root: configuration in, a running engine out.  The library, the server and the command line use it.

``Engine`` is asynchronous; ``SyncEngine`` is the same behind blocking calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.from_thread
import msgspec
import structlog

from ..core.clock import MonotonicClock
from ..core.edge import Edge, ExecutorEdge
from ..core.errors import ConfigError
from ..core.kernel import Kernel, deliver_to
from ..core.messages import Control as Command
from ..core.messages import Finish, FinishReason, Message, Usage
from ..core.policy import Executor
from ..core.registry import Registry
from ..core.router import Tap
from .chosen import check, chosen
from .config_file import load
from .control import Control
from .executors import native_build
from .executors.thread import ExecutorThread
from .folders import journal_folder
from .journal import Journal
from .schema import GenerateRequest, parse
from .settings import Config
from .text.edge import TextEdge
from .text.events import Accepted, Delta, Ended, TextEvent
from .traces.recorder import TraceRecorder
from .watchdog import Watchdog
from .wire.control_v1 import ControlSession
from .wire.llm_v1_frames import timing_ms

log = structlog.get_logger("mainspring.engine")
RELOAD_FACTOR = 4.0  # a reload may take so many times what the load before it took, or executor.stall_s
POLICY_LIMIT_S = 1.0  # a policy call that has not returned after this is ended, and counts as an exception


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished request.  ``timing`` in ms; ``error`` holds code, message and param of a refusal or failure."""

    rid: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timing: dict[str, float]
    stop: str | int | None = None
    error: dict[str, Any] | None = None


class Engine:
    """``async with Engine() as engine: result = await engine.generate({"prompt": "Hi", "max_tokens": 8})``.

    Requests are mappings in the one schema of ``plugins.schema`` (or a ``GenerateRequest``).
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        overrides: Iterable[str] = (),
        gateways: bool = False,
        make_executor: Callable[[], Executor] | None = None,
        text: TextEdge | None = None,
        registry: Registry | None = None,
        progress: Callable[[str], None] = lambda _line: None,
        taps: Sequence[Tap] = (),
    ) -> None:
        """``config`` None: the defaults with ``overrides`` (``key=value``).  ``gateways`` starts the configured ones
        (their addresses are taken here); ``make_executor`` and ``text`` replace the configured executor and text edge;
        ``taps`` see every message besides the journal.
        """
        self.config = config or load(None, overrides).config
        if make_executor is None:
            native_build.begin(self.config)
        self.registry, self._with_gateways = registry or Registry(), gateways
        self.text = text or TextEdge(self.config)
        self.gateways: list[Any] = []
        try:  # what is wrong here should not wait until the weights are loaded, nor a taken address until torch is
            if gateways:
                self._bind_gateways()
            self._check_plugins(self.config)
        except BaseException:
            for gateway in self.gateways:
                getattr(gateway, "unbind", lambda: None)()
            raise
        settings = self.config.journal
        self.journal = Journal(settings.size, journal_folder(settings), settings.max_bytes, settings.prompts)
        self.reread: Callable[[], Config] | None = None  # the configuration file as it is now, for a reload
        self.control = Control(self.config, self._check_plugins)
        edges: list[Edge] = [self.text, self.control, *self.gateways]

        self._taps = [*taps]  # of every kernel
        self._recorder = TraceRecorder(Path(settings.trace).expanduser()) if settings.trace else None
        if self._recorder is not None:
            self._taps.append(self._recorder.record)
        if self.registry.manager.hook.observe.get_hookimpls():
            self._taps.append(self._observe)
        self._watchdog = Watchdog(POLICY_LIMIT_S)
        self.kernel = self._new_kernel(self.config, self.journal, make_executor, edges, progress)
        self._stack = contextlib.AsyncExitStack()

    def _bind_gateways(self) -> None:
        for name in _different(self.config.gateways):
            gateway = self.registry.make("gateway", name, {}, self.config, self.text)
            gateway.operator = self._new_operator
            gateway.bind()
            self.gateways.append(gateway)

    def _new_kernel(
        self,
        config: Config,
        journal: Journal,
        make_executor: Callable[[], Executor] | None,
        edges: Sequence[Edge],
        progress: Callable[[str], None],
    ) -> Kernel:
        """A kernel that is seen by all taps, and builds its executor again after a failure."""
        last: ExecutorThread | None = None

        def executor(kernel: Kernel) -> ExecutorEdge:
            nonlocal last
            limit_s = None  # somebody watches the first load, and it may convert weights
            if last is not None:
                limit_s = max(config.executor.stall_s, RELOAD_FACTOR * last.load_s)
                last = None
                gc.unfreeze()  # the failed executor's gigabytes may hang in a cycle
                gc.collect()
            name, options = config.executor.use, config.executor.options
            made = make_executor() if make_executor else self.registry.make("executor", name, options, config)
            last = ExecutorThread(made, kernel.post_threadsafe, kernel.now, limit_s)
            return last

        taps = [journal.record, *self._taps]
        return Kernel(config, self.registry, MonotonicClock(), executor, edges, taps, progress, self._watchdog)

    def _new_operator(self) -> ControlSession:
        return ControlSession(self.control, self.journal, self.reread)

    def _observe(self, message: Message, now: float) -> None:
        """Show a message to the observers; one that raises is logged and disturbs nobody."""
        try:
            self.registry.manager.hook.observe(message=message, now=now)
        except Exception:
            log.exception("observer_failed")

    def _on_stop(self) -> None:
        """Tell every plugin; one that raises keeps none of the others from cleaning up (F-08)."""
        manager = self.registry.manager
        for plugin in [called.plugin for called in reversed(manager.hook.on_stop.get_hookimpls())]:
            others = [other for other in manager.get_plugins() if other is not plugin]
            try:
                manager.subset_hook_caller("on_stop", others)(reason=self.kernel.fault or "stopped")
            except Exception:
                log.exception("on_stop_failed", plugin=manager.get_name(plugin))

    def _check_plugins(self, config: Config) -> None:
        """Raise for a selected plugin that cannot be had, or whose options do not fit."""
        for choice in chosen(config):
            if choice.slot == "gateway" and not self._with_gateways:
                continue
            check(choice, config, self.registry, "configuration")

    async def __aenter__(self) -> Self:
        self._stack.callback(self.journal.close)
        if self._recorder is not None:
            self._stack.callback(self._recorder.close)
        self._stack.callback(self._watchdog.close)
        self._stack.callback(self._on_stop)
        try:
            await self._stack.enter_async_context(self.kernel.running())
            self.registry.manager.hook.on_start(kernel=self.kernel)
        except BaseException as error:  # noqa: BLE001 - raised again, out of its group
            await self._stack.aclose()
            raise first_cause(error) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await self._stack.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as errors:
            raise first_cause(errors) from None

    async def stream(
        self, request: Mapping[str, Any] | GenerateRequest, *, parent: str | None = None
    ) -> AsyncGenerator[TextEvent, None]:
        """``Accepted``, ``Delta``... and the one ``Ended``.  Leaving early cancels.  Raises ClientError for a request
        that does not fit the schema; a refusal by the engine arrives as ``Ended`` with ``finish.failure``."""
        checked = self._check(request, forks=parent is not None)
        events: asyncio.Queue[TextEvent] = asyncio.Queue()
        rid = self.text.open(checked, events.put_nowait, parent=parent)
        try:
            while True:
                event = await events.get()
                yield event
                if isinstance(event, Ended):
                    return
        finally:
            self.text.cancel(rid)

    async def generate(self, request: Mapping[str, Any] | GenerateRequest, *, parent: str | None = None) -> Result:
        """Run one request to its end.  Raises ClientError like ``stream``."""
        text: list[str] = []
        token_ids: list[int] = []
        async for event in self.stream(request, parent=parent):
            if isinstance(event, Delta | Ended):
                text.append(event.text)
                token_ids += event.token_ids
            if isinstance(event, Ended):
                return result(event.rid, "".join(text), token_ids, event.finish)
        raise AssertionError("a stream ends with Ended")

    async def fork(self, rid: str, options: Mapping[str, Any] | None = None) -> Result:
        """Branch off the running request ``rid`` (the id in its ``Accepted``): go on from its text so far with other
        ``options`` (a request without a prompt), sharing its KV until either writes.  ``stream(..., parent=rid)``
        streams a fork.  A parent that is not running is refused with ``not_found`` in ``Result.error``."""
        return await self.generate(options or {}, parent=rid)

    async def drain(self) -> None:
        """Refuse what comes, let what runs finish within ``server.drain_s``.

        What waits for its turn in a gateway, and a prompt that is being encoded, were taken before: the host hears of
        the drain when all of them have reached it.
        """
        started, drain_s = self.kernel.now(), self.config.server.drain_s
        self.kernel.draining = True  # the edges take nothing new from now on
        for gateway in self.gateways:
            if Command in gateway.consumes:
                deliver_to(gateway.deliver)(Command("drain"), started)
        with anyio.move_on_after(drain_s):
            for gateway in self.gateways:
                if handed_over := getattr(gateway, "handed_over", None):
                    await handed_over()
            await self.text.encoded()
        await self._drain_kernels(max(0.0, drain_s - (self.kernel.now() - started)))

    async def _drain_kernels(self, timeout_s: float) -> None:
        """The end of a drain, when every prompt taken before it has reached a host."""
        await self.kernel.drain(timeout_s)

    def _check(self, request: Mapping[str, Any] | GenerateRequest, forks: bool = False) -> GenerateRequest:
        actors = self.kernel.actors
        known = actors.sampler.parameters if actors else frozenset[str]()
        return request if isinstance(request, GenerateRequest) else parse(request, known, forks=forks)


def _different(gateways: tuple[str, ...]) -> tuple[str, ...]:
    """The names as they are.  Raises ConfigError for one that would find its own address taken."""
    for place, name in enumerate(gateways):
        if name in gateways[:place]:
            raise ConfigError(f"gateways = {list(gateways)}: {name!r} stands there twice")
    if {"ws", "http"} <= set(gateways):
        raise ConfigError(f"gateways = {list(gateways)}: http serves all that ws does, on the same port; leave ws out")
    return gateways


def first_cause(error: BaseException) -> BaseException:
    """What went wrong first, out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def result(rid: str, text: str, token_ids: Iterable[int], finish: Finish) -> Result:
    """The plain record of an ended request."""
    failure = msgspec.structs.asdict(finish.failure) if finish.failure else None
    timing = timing_ms(finish.timing)
    return Result(rid, text, tuple(token_ids), finish.reason, finish.usage, timing, finish.stop, failure)


class SyncEngine:
    """``with SyncEngine() as engine: print(engine.generate({"prompt": "Hi"}).text)``; safe from several threads."""

    def __init__(self, config: Config | None = None, **options: Any) -> None:
        """Arguments as for ``Engine``."""
        self._config, self._options = config, options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
        self._portal = portal
        self._engine = portal.call(lambda: Engine(self._config, **self._options))
        self._stack.enter_context(portal.wrap_async_context_manager(self._engine))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._stack.__exit__(kind, error, traceback)

    def generate(self, request: Mapping[str, Any] | GenerateRequest) -> Result:
        """Like ``Engine.generate``."""
        ended: Result = self._portal.call(self._engine.generate, request)
        return ended

    def stream(self, request: Mapping[str, Any] | GenerateRequest) -> Iterator[TextEvent]:
        """Like ``Engine.stream``; closing the iterator cancels."""
        events = self._engine.stream(request)

        async def following() -> TextEvent | None:
            return await anext(events, None)

        try:
            while (event := self._portal.call(following)) is not None:
                yield event
        finally:
            self._portal.call(events.aclose)


__all__ = ["Accepted", "Delta", "Ended", "Engine", "Result", "SyncEngine", "TextEvent"]
