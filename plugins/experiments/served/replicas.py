"""Replica split: two kernels in one process behind one gateway; each request goes to one of them for good.

Which one is decided by a hash of the experiment's name and the request's key (its id, or its tenant), so that the split
is the same on every server and has nothing to do with load.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import anyio
import msgspec

from ....core.config import Config as CoreConfig
from ....core.edge import Edge, KernelPort
from ....core.kernel import Kernel
from ....core.messages import Cancel, Control, Down, Emit, Message, Note, Pause, Resume, Stop, Submit, Swap
from ....core.policy import Executor, ExecutorInfo
from ...engine import Engine
from ...folders import journal_folder
from ...journal import Journal
from ...settings import Config
from ...simulation.records import RequestRecord
from ...text.edge import TextEdge
from ..arms import Arm
from ..spec import Experiment
from .traffic_log import TrafficLog
from .windows import Book


def bucket(experiment: str, key: str, num_arms: int) -> int:
    """0 to ``num_arms - 1``, evenly and always the same."""
    digest = hashlib.blake2b(f"{experiment}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_arms


class SplitPort:
    """The ``KernelPort`` of gateways and text: one engine to them, two behind it."""

    def __init__(self, kernels: list[Kernel], arms: list[str], experiment: str, key: str) -> None:
        self._kernels, self._arms, self._experiment, self._key = kernels, arms, experiment, key
        self._home: dict[str, int] = {}  # rid -> kernel

    @property
    def config(self) -> CoreConfig:
        return self._kernels[0].config

    @property
    def info(self) -> ExecutorInfo:
        return self._kernels[0].info

    @property
    def ready(self) -> bool:
        return all(kernel.ready for kernel in self._kernels)

    @property
    def healthy(self) -> bool:
        return all(kernel.healthy for kernel in self._kernels)

    @property
    def draining(self) -> bool:
        return any(kernel.draining for kernel in self._kernels)

    def now(self) -> float:
        return self._kernels[0].now()

    def stats(self) -> dict[str, float]:
        """Sums of both."""
        total: Counter[str] = Counter()
        for kernel in self._kernels:
            total.update(kernel.stats())
        return dict(total)

    def post(self, *messages: Message) -> None:
        for message in messages:
            self._route(message)

    def post_threadsafe(self, *messages: Message) -> None:
        self._kernels[0].post_threadsafe(*messages)

    def ended(self, emit: Emit) -> None:
        """Forget those that have ended."""
        for row in emit.rows:
            if row.finish is not None:
                self._home.pop(row.rid, None)

    def _route(self, message: Message) -> None:
        match message:
            case Submit():
                home = self._home.get(message.parent) if message.parent is not None else None
                if home is None:
                    key = message.tenant if self._key == "tenant" else message.rid
                    home = bucket(self._experiment, key, len(self._kernels))
                self._home[message.rid] = home
                self._kernels[home].post(msgspec.structs.replace(message, arm=self._arms[home]))
            case Cancel():
                self._kernels[self._home.get(message.rid, 0)].post(message)
            case Pause() | Resume():
                for home, rids in self._split(message.rids):
                    self._kernels[home].post(type(message)(tuple(rids)))
            case Stop():
                for home, rids in self._split([rid for rid, _, _ in message.rows]):
                    self._kernels[home].post(Stop(tuple(row for row in message.rows if row[0] in rids)))
            case Control():
                for kernel in self._kernels:
                    kernel.post(message)
            case Swap():
                reason = "an experiment with replicas is running: its arms do not change"
                self._kernels[0].post(Note("", "scheduler.swap_failed", {"error": reason}))
            case _:
                self._kernels[0].post(message)

    def _split(self, rids: Any) -> list[tuple[int, list[str]]]:
        groups: dict[int, list[str]] = {}
        for rid in rids:
            groups.setdefault(self._home.get(rid, 0), []).append(rid)
        return list(groups.items())


class Behind:
    """An edge of the first kernel that talks to both: it gets the split port instead of the kernel's own."""

    def __init__(self, inner: Edge, port: SplitPort) -> None:
        self._inner, self._split = inner, port
        self.name, self.consumes = inner.name, inner.consumes

    def deliver(self, message: Message) -> None:
        if isinstance(message, Emit):
            self._split.ended(message)
        if not isinstance(message, Down):  # one kernel's failure ends its own requests, by the Emit that follows
            self._inner.deliver(message)

    async def start(self, port: KernelPort) -> None:
        await self._inner.start(self._split)

    async def run(self, port: KernelPort) -> None:
        await self._inner.run(self._split)

    async def flush(self) -> None:
        await self._inner.flush()


class Forward:
    """The only edge of the second kernel: what it emits goes to the one text edge there is."""

    name = "forward"
    consumes: tuple[type[Message], ...] = (Emit,)

    def __init__(self, text: TextEdge, port: SplitPort) -> None:
        self._text, self._split = text, port

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Emit)
        self._split.ended(message)
        self._text.deliver(message)

    async def start(self, port: KernelPort) -> None:
        """The text edge is started by the first kernel."""

    async def run(self, port: KernelPort) -> None:
        await anyio.sleep_forever()

    async def flush(self) -> None:
        await self._text.flush()


class SplitEngine(Engine):
    """An engine of two kernels, one per arm.  Each has its own executor: weights and KV memory are held twice."""

    def __init__(
        self,
        experiment: Experiment,
        arms: dict[str, Arm],
        *,
        gateways: bool = False,
        make_executor: Callable[[Config], Executor] | None = None,
        text: TextEdge | None = None,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """``make_executor`` replaces the configured executors."""
        spec = experiment.spec
        names = [spec.baseline, *spec.others]
        configs = [arms[name].config for name in names]
        first, second = configs
        super().__init__(
            first,
            gateways=gateways,
            make_executor=(lambda: make_executor(first)) if make_executor else None,
            text=text,
            progress=progress,
        )
        settings = second.journal
        folder: Path | None = journal_folder(settings)
        self.second_journal = Journal(
            settings.size, folder / "replica" if folder else None, settings.max_bytes, settings.prompts
        )

        self._window_s, self._zero = spec.live.window_s, 0.0
        self.book = Book(spec)
        self.changed: Callable[[], None] = lambda: None
        logs = [TrafficLog(self._keeper(name), self._came) for name in names]
        self._open: dict[str, int] = {}  # rid -> window it came in
        self._left: Counter[int] = Counter()  # requests of a window that have not ended
        self._num_closed = 0
        make_second = (lambda: make_executor(second)) if make_executor else None
        self.second = self._new_kernel(second, self.second_journal, make_second, [], progress)
        port = SplitPort([self.kernel, self.second], names, spec.name or experiment.path.stem, spec.live.key)
        self.second.edges = [Forward(self.text, port), logs[1]]
        self.kernel.edges = [*(Behind(edge, port) for edge in self.kernel.edges), logs[0], _Windows(self)]

    async def __aenter__(self) -> Self:
        self._stack.callback(self.second_journal.close)
        try:
            await self._stack.enter_async_context(self.second.running())
        except BaseException:
            await self._stack.aclose()
            raise
        return await super().__aenter__()

    async def _drain_kernels(self, timeout_s: float) -> None:
        await asyncio.gather(super()._drain_kernels(timeout_s), self.second.drain(timeout_s))

    # --- windows ---------------------------------------------------------------------------------------------------

    def _window(self, now: float) -> int:
        return int((now - self._zero) / self._window_s)

    def _came(self, rid: str, now: float) -> None:
        window = self._window(now)
        self._open[rid] = window
        self._left[window] += 1

    def _keeper(self, arm: str) -> Callable[[RequestRecord, float], None]:
        def keep(record: RequestRecord, now: float) -> None:
            window = self._open.pop(record.rid)
            self._left[window] -= 1
            self.book.keep(window, arm, record)
            self.close_windows(now)

        return keep

    def close_windows(self, now: float) -> None:
        """Windows that are over and whose requests have all ended can be looked at."""
        closed = False
        while self._num_closed < self._window(now) and not self._left[self._num_closed]:
            self.book.close(self._num_closed)
            del self._left[self._num_closed]
            self._num_closed += 1
            closed = True
        if closed:
            self.changed()


class _Windows:
    """Starts the clock of the windows when the engine serves, and closes them when nobody comes."""

    name = "windows"
    consumes: tuple[type[Message], ...] = ()

    def __init__(self, engine: SplitEngine) -> None:
        self._engine = engine

    def deliver(self, message: Message) -> None:
        """Gets none."""

    async def start(self, port: KernelPort) -> None:
        self._engine._zero = port.now()

    async def run(self, port: KernelPort) -> None:
        while True:
            await anyio.sleep(self._engine._window_s)
            self._engine.close_windows(port.now())

    async def flush(self) -> None:
        """Nothing waits here."""
