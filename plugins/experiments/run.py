"""``mainspring ab`` without the command line: file in, reports out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..machine import machine
from . import spec, workload
from .html import page
from .markdown import markdown
from .played import analyse
from .report import Report
from .runner import Clock, Runner
from .simulated import SimulatedClock
from .spec import Experiment
from .store import Store


def run(path: Path, out: Path, *, resume: bool = False, progress: Callable[[str], None] = lambda _line: None) -> Report:
    """Play the experiment in ``path``, write ``report.json`` and ``report.html`` into ``out``, return the report.

    An interrupt (KeyboardInterrupt) writes the reports of what was played, and goes on to the caller.  Raises
    ConfigError for whatever is wrong in the file.
    """
    experiment = spec.read(path)
    clock = _clock(experiment)
    try:
        store = Store(out, experiment, resume, basis(experiment, clock))
        runner = Runner(experiment, store, clock, progress)
        try:
            runner.run()
        except KeyboardInterrupt:
            if store.state.capacity is not None or experiment.spec.load.rate:
                _write(runner, store)
            raise
        return _write(runner, store)
    finally:
        clock.close()


def basis(experiment: Experiment, clock: Clock) -> bytes:
    """What results depend on besides the experiment file: the clock with its coefficients, and the trace."""
    return msgspec.json.encode([clock.description, clock.content, workload.trace_digest(experiment)])


def _write(runner: Runner, store: Store) -> Report:
    report, runs = analyse(runner, runner.levels(), machine())
    store.write("report.json", msgspec.json.format(msgspec.json.encode(report), indent=1))
    store.write("report.md", markdown(report).encode())
    store.write("report.html", page(report, runs, limits=bool(runner.first.slo)).encode())
    return report


def _clock(experiment: Experiment) -> Clock:
    if experiment.spec.clock == "sim":
        return SimulatedClock(experiment)
    from .live import LiveClock  # it brings the executors with it

    return LiveClock(experiment)
