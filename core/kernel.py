"""Builds the slots, wires the routes, starts and supervises the edges, drains and stops.

Children in start order: executor, then the edges in the order given (text first, gateways last); stopped in reverse.
When the executor fails or hangs, every accepted request gets one terminal error, and executor, host, allocator and
sampler are rebuilt together; edges and their connections stay.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio
import anyio.abc
import structlog

from . import messages as m
from .clock import Clock
from .config import Config
from .edge import Edge, ExecutorEdge
from .errors import EngineFault
from .policy import Allocator, AllocatorContext, ExecutorInfo, Sampler, SamplerContext, SchedulerActor
from .registry import Registry
from .router import Handler, Router, Routes, Tap

log = structlog.get_logger("mainspring.kernel")
STOP_TIMEOUT_S = 10.0
GONE = m.Failure("overloaded", "the engine is restarting; try again soon")


class Actors:
    """The pure actors that live and die with one executor: scheduler host, allocator, sampler."""

    def __init__(self, config: Config, registry: Registry, info: ExecutorInfo, *guards: Any) -> None:
        """``guards`` are a clock (puts the policy under a time budget) and a watchdog; simulation gives none."""
        allocator, sampler = config.allocator, config.sampler
        pool = AllocatorContext(info.num_blocks, allocator.block_size, allocator.evict, allocator.max_idle_s)
        ends = SamplerContext(info.vocab_size, info.end_token_ids)
        self.info = info
        self.allocator: Allocator = registry.make("allocator", allocator.use, allocator.options, pool)
        self.sampler: Sampler = registry.make("sampler", sampler.use, sampler.options, ends)
        parts = registry.make, self.allocator, self.sampler, info
        self.host: SchedulerActor = registry.make("host", "standard", {}, config.scheduler, *parts, *guards)

    def routes(self, launch: Handler, alarm: Handler) -> Routes:
        """Everything pure; ``launch`` gets each ``StepLaunch``, ``alarm`` each request to be woken."""
        host, allocator = self.host.handle, self.allocator.handle
        to_host = (m.Submit, m.Cancel, m.Pause, m.Resume, m.Stop, m.Control, m.Swap)
        return {
            **dict.fromkeys(to_host, (host,)),
            m.Wake: (allocator, host),  # cached blocks age by the clock before a plan looks at them
            m.StepPlan: (allocator,),
            m.StepGrant: (self.sampler.handle, host),
            m.StepLaunch: (launch,),
            m.StepResult: (allocator, host),  # fences are lifted before the host plans
            m.Alarm: (alarm,),
        }

    def check(self) -> None:
        """Conservation laws of all three."""
        for actor in (self.host, self.allocator, self.sampler):
            actor.check()


class RunningEdge(NamedTuple):
    """An edge with the scope that stops it and the event that says it has stopped."""

    edge: Edge
    scope: anyio.CancelScope
    done: anyio.Event


class Kernel:
    """One engine, and the ``KernelPort`` of its edges.  ``async with kernel.running():`` serves until left."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        clock: Clock,
        make_executor: Callable[[Kernel], ExecutorEdge],
        edges: Sequence[Edge] = (),
        taps: Sequence[Tap] = (),
        progress: Callable[[str], None] = lambda line: log.info("loading", what=line),
        watch: Callable[..., Any] | None = None,
    ) -> None:
        """``watch(function, *arguments)`` calls a policy's hook and raises TimeoutError if it does not return."""
        self.config, self.registry, self.clock, self.edges = config, registry, clock, list(edges)
        self.draining, self.fault = False, ""
        self.actors: Actors | None = None
        self._make_executor, self._progress, self._guards = make_executor, progress, (clock, watch)
        self._executor: ExecutorEdge | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failed = asyncio.Event()
        self._failures: list[float] = []
        self.router = Router(clock, self._routes(), taps)

    @property
    def info(self) -> ExecutorInfo:
        assert self.actors is not None, "the executor is not loaded"
        return self.actors.info

    @property
    def ready(self) -> bool:
        return self.actors is not None and not self.draining and not self.fault

    @property
    def healthy(self) -> bool:
        return not self.fault

    def now(self) -> float:
        return self.clock.now()

    def post(self, *messages: m.Message) -> None:
        try:
            self.router.post(*messages)
            if self.config.paranoid and self.actors is not None:
                self.actors.check()
        except Exception as error:  # a pure actor raised: its state can no longer be trusted
            log.exception("actor_failed")
            self.router.set_routes(self._routes())  # drops what is queued
            self.router.post(m.Down("engine", f"{type(error).__name__}: {error}"))

    def post_threadsafe(self, *messages: m.Message) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(functools.partial(self.post, *messages))

    def stats(self) -> dict[str, float]:
        if self.actors is None:
            return {}
        kv = {f"kv_{key}": value for key, value in self.actors.allocator.stats().items()}
        return {**self.actors.host.stats(), **kv}

    # --- life --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Kernel]:
        """Load, start the edges, serve until the block is left; raises EngineFault if it could not go on."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._build()
            async with anyio.create_task_group() as group:
                group.start_soon(self._supervise, group)
                running = [await group.start(self._run_edge, edge) for edge in self.edges]
                try:
                    yield self
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._stop(running)
                    group.cancel_scope.cancel()
        finally:
            if self._executor is not None:
                await self._executor.close()
        if self.fault:
            raise EngineFault(self.fault)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the others finish for ``timeout_s`` seconds, then end the rest as cancelled."""
        self.draining = True
        self.post(m.Control("drain"))
        with anyio.move_on_after(timeout_s):
            while self.actors is not None and self.actors.host.records:  # noqa: ASYNC110 - ends come from anywhere
                await anyio.sleep(0.02)
        self._cancel_all()

    def _cancel_all(self) -> None:
        if self.actors is not None:
            self.post(*(m.Cancel(rid) for rid in list(self.actors.host.records)))

    async def _build(self) -> None:
        """Load an executor on its own thread and put fresh actors around it."""
        executor = self._make_executor(self)
        try:
            actors = Actors(self.config, self.registry, await executor.load(self._progress), *self._guards)
        except BaseException:
            await executor.close()
            raise
        executor.serve(actors.sampler.run)
        self._executor, self.actors = executor, actors
        self.router.set_routes(self._routes())

    def _routes(self) -> Routes:
        """The wiring for the present actors; without any, requests are refused and the rest is dropped."""
        if self.actors is not None and self._executor is not None:
            routes = dict(self.actors.routes(deliver_to(self._executor.deliver), self._alarm))
        else:
            to_host = (m.Cancel, m.Pause, m.Resume, m.Stop, m.Control, m.Swap, m.Wake)
            routes = {**dict.fromkeys((*to_host, m.StepResult), ()), m.Submit: (refuse,)}
        routes |= {m.Down: (self._on_down,), m.Note: (), m.Emit: ()}
        for edge in self.edges:
            for kind in edge.consumes:
                routes[kind] = (*routes.get(kind, ()), deliver_to(edge.deliver))
        return routes

    def _alarm(self, message: m.Message, now: float) -> None:
        assert isinstance(message, m.Alarm) and self._loop is not None
        if (left := message.at - self.now()) > 0:  # asked again at the end: timers that count milliseconds fire early
            self._loop.call_later(max(left, 0.001), self._alarm, message, now)
        else:
            self.post(m.Control("tick"))

    async def _run_edge(self, edge: Edge, *, task_status: anyio.abc.TaskStatus[RunningEdge]) -> None:
        running = RunningEdge(edge, anyio.CancelScope(), anyio.Event())
        try:
            with running.scope:
                await edge.start(self)
                task_status.started(running)
                await self._keep_running(edge)
        finally:
            running.done.set()

    async def _keep_running(self, edge: Edge) -> None:
        while True:
            try:
                return await edge.run(self)
            except Exception as error:
                log.exception("edge_failed", edge=edge.name)
                if not self._may_restart():
                    return self._give_up(f"{edge.name} failed: {error}")

    async def _stop(self, running: list[RunningEdge]) -> None:
        """End what still runs, let the news reach the clients, then stop the edges in reverse order."""
        self._cancel_all()
        for edge, _, _ in running:
            with anyio.move_on_after(STOP_TIMEOUT_S):
                await edge.flush()
        for _, scope, done in reversed(running):
            scope.cancel()
            with anyio.move_on_after(STOP_TIMEOUT_S):
                await done.wait()

    # --- supervision -------------------------------------------------------------------------------------------------

    async def _supervise(self, group: anyio.abc.TaskGroup) -> None:
        """Look for a hung executor and for deadlines; rebuild after a failure; end the process past the intensity."""
        stall_s = self.config.executor.stall_s
        while not self.fault:
            with anyio.move_on_after(min(0.25, stall_s / 4)):
                await self._failed.wait()
            if self._failed.is_set():
                await self._rebuild()
            elif self._executor is not None and self._executor.stalled_for() > stall_s:
                self.post(m.Down("executor", f"no result within executor.stall_s = {stall_s:g} s"))
            elif self.actors is not None and self.actors.host.records:
                self.post(m.Control("tick"))
        group.cancel_scope.cancel()

    async def _rebuild(self) -> None:
        if not self._may_restart():
            return self._give_up("the executor failed too often")
        try:
            await self._build()
            self._failed.clear()
            log.warning("executor_rebuilt")
        except Exception as error:
            log.exception("rebuild_failed")
            self._give_up(f"the executor could not be rebuilt: {error}")

    def _may_restart(self) -> bool:
        now, config = self.now(), self.config.executor
        self._failures = [*(t for t in self._failures if now - t < config.restart_window_s), now]
        return len(self._failures) <= config.restarts

    def _give_up(self, reason: str) -> None:
        self.fault = reason
        log.critical("giving_up", reason=reason)
        self._failed.set()

    def _on_down(self, message: m.Message, now: float) -> list[m.Message]:
        """One terminal error for every accepted request; nothing of the old actors is used again."""
        assert isinstance(message, m.Down)
        log.error("down", actor=message.actor, error=message.error, step=message.step)
        actors, executor, self.actors, self._executor = self.actors, self._executor, None, None
        self.router.set_routes(self._routes())
        self._failed.set()
        if executor is not None:
            executor.abandon()
        failure = m.Failure("server_error", f"the {message.actor} failed: {message.error}")
        return [actors.host.abort_all(failure, now)] if actors else []


def refuse(message: m.Message, now: float) -> list[m.Message]:
    """The answer to a submit while there is no host."""
    assert isinstance(message, m.Submit)
    return [m.Emit(-1, (m.refusal(message, GONE, now),))]


def deliver_to(deliver: Callable[[m.Message], None]) -> Handler:
    """An edge's mailbox as a handler that answers nothing; what it raises is the edge's fault, not the actors'."""

    def handler(message: m.Message, _now: float) -> None:
        try:
            deliver(message)
        except Exception:
            log.exception("delivery_failed", to=deliver)

    return handler
