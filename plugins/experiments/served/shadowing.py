"""Shadow: the other arm's policy is asked at every step and never obeyed; this edge counts how often they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import anyio
import msgspec
import structlog

from ....core.edge import KernelPort
from ....core.messages import Down, Message, Note
from ...settings import Config, SchedulerConfig, ShadowConfig
from ..arms import Arm
from ..spec import Experiment

log = structlog.get_logger("mainspring.experiment")
POLICY_KEYS = frozenset({"use", "options", "wrap", "seed"})
#: Kinds of difference, as the host's notes name them.
KINDS = ("only_real", "only_shadow", "tokens", "preempt_real", "preempt_shadow")


def shadowed(experiment: Experiment, arms: dict[str, Arm]) -> Config:
    """The baseline's configuration with the other arm's policy as its shadow.  Raises ConfigError if the arms differ
    in more than their policies: limits and memory are the engine's, there is only one."""
    spec = experiment.spec
    if len(spec.others) != 1:
        raise experiment.error(f"arms: a shadow experiment has two, this one has {len(spec.arms)}")
    base, other = arms[spec.baseline].config, arms[spec.others[0]].config
    for key in sorted(changed_keys(base, other) - {f"scheduler.{name}" for name in POLICY_KEYS}):
        if not key.startswith("scheduler.options."):
            raise experiment.error(f"arms.{spec.others[0]}: {key}: a shadow shares the engine, only its policy differs")
    table = other.scheduler
    shadow = ShadowConfig(use=table.use, wrap=table.wrap, seed=table.seed, options=table.options)
    scheduler: SchedulerConfig = msgspec.structs.replace(base.scheduler, shadow=shadow)
    return msgspec.structs.replace(base, scheduler=scheduler)


def changed_keys(one: Config, two: Config) -> set[str]:
    """Dotted keys in which two configurations differ."""
    from ...config_file import flatten

    first, second = flatten(msgspec.to_builtins(one)), flatten(msgspec.to_builtins(two))
    return {key for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


class ShadowLog:
    """The edge: every divergence becomes a line of ``divergences.jsonl``, and ``summary()`` says how often."""

    name = "shadow_log"
    consumes: tuple[type[Message], ...] = (Note,)

    def __init__(self, folder: Path) -> None:
        """Must be the first edge: its file is open while any other runs."""
        self._path, self.buffer_bytes = folder / "divergences.jsonl", 1 << 16
        self._file: BinaryIO | None = None
        self._kinds: Counter[str] = Counter()
        self._port: KernelPort | None = None
        self.num_diverged = 0
        self._before: Counter[str] = Counter()  # of engines that have ended

    def see(self, message: Message, now: float) -> None:
        """The tap: what the host has counted is gone once the engine has been told that it failed."""
        if isinstance(message, Down):
            self._keep()

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Note)
        if message.point != "scheduler.shadow":
            return
        self.num_diverged += 1
        self._kinds.update(kind for kind in KINDS if kind in message.facts)
        self._kinds["reordered"] += bool(message.facts.get("reordered"))
        if self._file is not None:
            self._try(
                self._file.write, msgspec.json.encode(message.facts) + b"\n"
            )  # buffered: seldom a disk in the way

    def _try(self, write: Callable[..., Any], *data: bytes) -> None:
        """A disk that is full costs the rest of the file, and nothing else."""
        try:
            write(*data)
        except OSError as error:
            log.error("divergences_not_written", file=str(self._path), reason=error.strerror or str(error))
            file, self._file = self._file, None
            if file is not None:
                with suppress(OSError):  # it would write the rest
                    file.close()

    def summary(self) -> dict[str, Any]:
        """Steps asked, steps in which the two differed, and by what."""
        stats = self._before + Counter(self._counted())
        asked = stats["shadow_steps"]
        return {
            "steps": asked,
            "diverged": self.num_diverged,
            "share": round(self.num_diverged / asked, 4) if asked else 0.0,
            "refusals": stats["shadow_refusals"],
            "faults": stats["shadow_faults"],
            "by_kind": dict(self._kinds),
        }

    def _counted(self) -> dict[str, int]:
        stats = self._port.stats() if self._port else {}
        return {key: int(value) for key, value in stats.items() if key.startswith("shadow_")}

    def _keep(self) -> None:
        self._before.update(self._counted())

    async def start(self, port: KernelPort) -> None:
        self._port, self._file = port, self._path.open("ab", buffering=self.buffer_bytes)

    async def run(self, port: KernelPort) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._keep()
            self._port = None
            if self._file is not None:
                self._try(self._file.close)

    async def flush(self) -> None:
        """The file is closed, and so written, when the edge stops."""
