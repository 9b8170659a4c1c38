"""``mainspring serve``: load the model, listen, and stop in stages on SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import structlog

from ...core.errors import MainspringError
from ...core.hookspecs import Register, hookimpl
from .. import logs
from ..engine import Engine
from ..event_loop import run
from ..folders import state_folder
from .command import FAILED, OK
from .options import add_config, config_path, load_config

if TYPE_CHECKING:
    from ..experiments.served.start import Served

log = structlog.get_logger("mainspring.serve")
#: New objects, and young passes before each older one.  A full pass sees only what came after the start, so it may come
#: often: what dropped connections leave is in cycles, and would pile up until then.
COLLECT_AFTER = (5_000, 5, 2)


class ServeCommand:
    help = "serve the model over WebSocket"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)
        parser.add_argument("--experiment", type=Path, metavar="FILE", help="compare arms on this server's traffic")
        parser.add_argument(
            "--experiment-out", type=Path, metavar="DIR", help="where its reports go (default: the user's state folder)"
        )

    def run(self, args: argparse.Namespace) -> int:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _exit)  # until the event loop runs
        args.config = config_path(args)  # a reload reads the same file, or says that it is gone
        loaded = load_config(args)
        logs.setup(loaded.config.log)

        def progress(line: str) -> None:
            log.info("loading", what=line)

        if args.experiment is not None:
            from ..experiments.served.start import start  # only this needs what experiments bring along

            out = args.experiment_out or state_folder() / "experiments" / args.experiment.stem
            return run(serve_experiment(start(args.experiment, loaded.config, out, progress=progress)))
        engine = Engine(loaded.config, gateways=True, progress=progress)
        engine.reread = lambda: load_config(args).config
        return run(serve(engine))


def _exit(number: int, _frame: object) -> None:
    """End as other errors do, not at once: compilers of the kernels would go on, and leave what they made."""
    sys.exit(128 + number)


async def serve_experiment(served: Served) -> int:
    """Serve until a signal, then say what the experiment found.  Its arms decide the scheduler: SIGHUP does nothing."""
    code = await serve(served.engine)
    sys.stdout.write(await served.stopped())
    return code


async def serve(engine: Engine) -> int:
    """Serve until a signal: the first drains, a second one stops at once.  SIGHUP applies ``engine.reread()``.

    Raises what ended the engine.
    """
    stopping = anyio.CancelScope()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, engine)
    signals = asyncio.create_task(_watch_signals(engine, stopping))
    try:
        with stopping:
            async with engine:
                keep_loaded()
                log.info("ready", model=engine.kernel.info.model, detail=engine.kernel.info.detail)
                await anyio.sleep_forever()
    finally:
        signals.cancel()
    return FAILED if signals.done() else OK


def keep_loaded() -> None:
    """Spare what has been loaded by now (code, tokenizer, model) the garbage collector's passes.

    They would look at a million objects that stay, some milliseconds at a time and a sixth of a busy server's work.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _reload(engine: Engine) -> None:
    try:
        if engine.reread is not None:
            engine.control.reload(engine.reread())
    except MainspringError as error:
        log.error("reload_refused", reason=str(error))


async def _watch_signals(engine: Engine, stopping: anyio.CancelScope) -> None:
    """Returns only after a second signal."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received.put_nowait, number)
    log.info("stopping", signal=(await received.get()).name, drain_s=engine.config.server.drain_s)
    draining = asyncio.create_task(_drain(engine, stopping))
    second = await received.get()
    log.warning("stopping_now", signal=second.name)
    draining.cancel()
    stopping.cancel()


async def _drain(engine: Engine, stopping: anyio.CancelScope) -> None:
    if engine.kernel.ready:  # while it is still loading there is nothing to drain
        await engine.drain()
    stopping.cancel()


@hookimpl
def register_commands(register: Register) -> None:
    register("serve", ServeCommand)
