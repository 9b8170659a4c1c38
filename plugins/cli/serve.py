"""``mainspring serve``: load the model, listen, and stop in stages on SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Callable

import anyio
import structlog

from ...core.hookspecs import Register, hookimpl
from .. import logs
from ..engine import Engine
from .command import FAILED, OK
from .options import add_config, load_config

log = structlog.get_logger("mainspring.serve")


class ServeCommand:
    help = "serve the model over WebSocket"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)

    def run(self, args: argparse.Namespace) -> int:
        loaded = load_config(args)
        logs.setup(loaded.config.log)
        engine = Engine(loaded.config, gateways=True, progress=lambda line: log.info("loading", what=line))
        return asyncio.run(serve(engine))


async def serve(engine: Engine) -> int:
    """Serve until a signal: the first drains, a second one stops at once."""
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    code = OK
    async with anyio.create_task_group() as group:
        stop = group.cancel_scope.cancel

        async def watch() -> None:
            log.info("stopping", signal=(await signals.get()).name, drain_s=engine.config.server.drain_s)
            if not engine.kernel.ready:  # still loading: there is nothing to drain
                stop()
            group.start_soon(_drain, engine, stop)
            log.warning("stopping_now", signal=(await signals.get()).name)
            nonlocal code
            code = FAILED
            stop()

        group.start_soon(watch)
        async with engine:
            log.info("ready", model=engine.kernel.info.model, detail=engine.kernel.info.detail)
            await anyio.sleep_forever()
    return code


async def _drain(engine: Engine, stop: Callable[[], None]) -> None:
    await engine.drain()
    stop()


@hookimpl
def register_commands(register: Register) -> None:
    register("serve", ServeCommand)
