"""``serve --experiment``: an engine that runs an experiment on its own traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import anyio.to_thread
import msgspec
import structlog

from ....core.policy import Executor
from ...engine import Engine
from ...folders import make_writable
from ...machine import machine
from ...settings import Config
from ...text.edge import TextEdge
from .. import arms as arms_of
from .. import spec as spec_of
from ..html import page
from ..report import Report
from ..spec import Experiment
from ..table import text as table
from .replicas import SplitEngine
from .shadowing import ShadowLog, changed_keys, shadowed
from .switchback import Switchback
from .windows import LEVEL, Book

log = structlog.get_logger("mainspring.experiment")
Progress = Callable[[str], None]


class Served:
    """``engine`` is the engine to serve; ``stopped()`` writes the last report."""

    def __init__(self, experiment: Experiment, engine: Engine, out: Path) -> None:
        self.experiment, self.engine, self.out = experiment, engine, out
        self.book: Book | None = None
        self.shadow: ShadowLog | None = None
        self._writing: asyncio.Task[None] | None = None

    async def stopped(self) -> str:
        """To be called when the engine has stopped, in its event loop: like ``finish``, after what is being written."""
        if self._writing is not None:
            await self._writing
        return await anyio.to_thread.run_sync(self.finish)

    def changed(self) -> None:
        """Another round is over: write the report of all so far, on a thread."""
        if self.book is None or (self._writing is not None and not self._writing.done()):
            return
        self._writing = asyncio.get_running_loop().create_task(self._write_aside(self.book))

    async def _write_aside(self, book: Book) -> None:
        try:
            await anyio.to_thread.run_sync(lambda: self._write(self._report(book)[1]))
        except Exception:
            log.exception("report_not_written")  # traffic goes on

    def finish(self) -> str:
        """Write what there is to say; returns it for the terminal."""
        if self.shadow is not None:
            summary = self.shadow.summary()
            files = {"shadow.json": msgspec.json.format(msgspec.json.encode(summary), indent=2)}
            share = f"{summary['share']:.1%}"
            said = f"shadow: differed in {summary['diverged']} of {summary['steps']} steps ({share})"
            return f"{said}\n{self._kept(files, self.out)}\n"
        assert self.book is not None
        report, files = self._report(self.book)
        return table(report) + f"\n{self._kept(files, self.out / 'report.html')}\n"

    def _report(self, book: Book) -> tuple[Report, dict[str, bytes]]:
        """The report, and its files by name."""
        report, runs = book.report(machine(), self.experiment.path.stem)
        html = page(report, {LEVEL: runs}, limits=False, played=False)
        return report, {
            "report.json": msgspec.json.format(msgspec.json.encode(report), indent=1),
            "report.html": html.encode(),
        }

    def _write(self, files: dict[str, bytes]) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (self.out / name).write_bytes(data)

    def _kept(self, files: dict[str, bytes], where: Path) -> str:
        """Write at the very end: what the terminal shows must not be lost with a full disk."""
        try:
            self._write(files)
        except OSError as error:
            return f"{where}: cannot be written: {error.strerror or error}"
        return str(where)


def start(
    path: Path,
    config: Config,
    out: Path,
    *,
    gateways: bool = True,
    make_executor: Callable[[Config], Executor] | None = None,
    text: TextEdge | None = None,
    progress: Progress = lambda _line: None,
) -> Served:
    """The engine of the experiment in ``path``, whose arms start from ``config``.  Raises ConfigError."""
    experiment = spec_of.read(path, live_traffic=True)
    spec, arms = experiment.spec, arms_of.make(experiment, under=config)
    if any(arm.sampling for arm in arms.values()):
        raise experiment.error("arms: request: the requests of a server are its clients'")
    make_writable(out, "--experiment-out")
    if spec.live.mode == "replicas":
        if len(arms) != 2:
            raise experiment.error(f"arms: replicas are two, this experiment has {len(arms)}")
        split = SplitEngine(
            experiment, arms, gateways=gateways, make_executor=make_executor, text=text, progress=progress
        )
        served = Served(experiment, split, out)
        served.book, split.changed = split.book, served.changed
        return served
    shadow = spec.live.mode == "shadow"
    base = shadowed(experiment, arms) if shadow else arms[spec.baseline].config
    make = (lambda: make_executor(base)) if make_executor else None
    shadow_log = ShadowLog(out) if shadow else None
    taps = [shadow_log.see] if shadow_log else []
    engine = Engine(base, gateways=gateways, make_executor=make, text=text, progress=progress, taps=taps)
    served = Served(experiment, engine, out)
    if shadow_log is not None:
        served.shadow = shadow_log
        engine.kernel.edges.insert(0, shadow_log)
        return served
    for name in spec.others:
        fixed = sorted(key for key in changed_keys(base, arms[name].config) if not key.startswith("scheduler."))
        if fixed:
            raise experiment.error(f'arms.{name}: {fixed[0]}: cannot change while running; use live.mode = "replicas"')
    schedulers = {name: arm.config.scheduler for name, arm in arms.items()}
    edge = Switchback(experiment, schedulers, engine.control.swap, served.changed)
    served.book = edge.book
    engine.kernel.edges.append(edge)
    return served
