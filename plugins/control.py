"""Changing the scheduler while requests run: the same way for SIGHUP, ``/v1/control`` and the library.

Only ``scheduler.*`` can change without a restart.  Requests and their KV stay; a hand-over that fails leaves the old
policy in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import structlog

from ..core.config import SchedulerConfig
from ..core.edge import KernelPort
from ..core.errors import ConfigError
from ..core.messages import Control as ControlMessage
from ..core.messages import Message, Note, Swap
from .config_file import flatten
from .settings import Config

log = structlog.get_logger("mainspring.control")


class Control:
    """An edge that posts swaps and hears how they went."""

    name = "control"
    consumes: tuple[type[Message], ...] = (Note,)

    def __init__(self, config: Config, check: Callable[[Config], None]) -> None:
        """``check`` raises for a configuration whose plugins cannot be had or built."""
        self.config = config  # what is in force; its scheduler table changes with every swap
        self._check = check
        self._port: KernelPort | None = None
        self._answer: Note | None = None

    def deliver(self, message: Message) -> None:
        if isinstance(message, Note) and message.point.startswith("scheduler.swap"):
            self._answer = message

    async def start(self, port: KernelPort) -> None:
        self._port = port

    async def run(self, port: KernelPort) -> None:
        await anyio.sleep_forever()

    async def flush(self) -> None:
        """Nothing waits here."""

    def stats(self) -> dict[str, float]:
        """Gauges and counters of the engine."""
        return self._port.stats() if self._port else {}

    def command(self, message: ControlMessage) -> None:
        """Post an operator's command to the host."""
        if self._port is not None:
            self._port.post(message)

    def reload(self, new: Config) -> dict[str, Any]:
        """Apply an edited configuration.  Raises ConfigError naming keys that need a restart; then nothing changed."""
        old, wanted = flatten(msgspec.to_builtins(self.config)), flatten(msgspec.to_builtins(new))
        changed = sorted(key for key in old.keys() | wanted.keys() if old.get(key) != wanted.get(key))
        fixed = [key for key in changed if not key.startswith("scheduler.")]
        if fixed:
            raise ConfigError(f"{', '.join(fixed)}: needs a restart; only scheduler.* can change while running")
        return self.swap(new.scheduler)

    def swap(self, scheduler: SchedulerConfig) -> dict[str, Any]:
        """Put this ``[scheduler]`` table in force at the next step boundary; returns old and new name, options, step.

        Raises ConfigError or PluginError for a table that cannot be used, and for a hand-over that failed.
        """
        new = msgspec.structs.replace(self.config, scheduler=scheduler)
        self._check(new)
        if self._port is None or not self._port.ready:
            raise ConfigError("swap: the engine is not ready; try again")
        self._answer = None
        self._port.post(Swap(scheduler))
        answer: Note | None = self._answer  # the router runs to completion, so the host has answered
        if answer is None or answer.point != "scheduler.swapped":
            reason = answer.facts["error"] if answer else "no answer"
            log.warning("swap_failed", old=self.config.scheduler.use, new=scheduler.use, reason=reason)
            raise ConfigError(f"swap to {scheduler.use!r} failed, {self.config.scheduler.use!r} goes on: {reason}")
        self.config = new
        log.info("swapped", **answer.facts)
        return dict(answer.facts)
