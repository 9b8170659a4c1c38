"""Shadow: the other arm's policy is asked at every step and never obeyed; this edge counts how often they differ."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from ....core.edge import KernelPort
from ....core.errors import ConfigError
from ....core.messages import Message, Note
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
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._file = (folder / "divergences.jsonl").open("ab")
        except OSError as error:
            raise ConfigError(f"--experiment-out {folder}: {error.strerror or error}") from error
        self._kinds: Counter[str] = Counter()
        self._port: KernelPort | None = None
        self.num_diverged = 0
        self._stats: dict[str, float] = {}

    def deliver(self, message: Message) -> None:
        assert isinstance(message, Note)
        if message.point != "scheduler.shadow":
            return
        self.num_diverged += 1
        self._kinds.update(kind for kind in KINDS if kind in message.facts)
        self._kinds["reordered"] += bool(message.facts.get("reordered"))
        self._file.write(msgspec.json.encode(message.facts) + b"\n")  # buffered: no disk in the way of a step

    def summary(self) -> dict[str, Any]:
        """Steps asked, steps in which the two differed, and by what."""
        stats = (self._port.stats() if self._port else {}) or self._stats
        asked = stats.get("shadow_steps", 0.0)
        return {
            "steps": int(asked),
            "diverged": self.num_diverged,
            "share": round(self.num_diverged / asked, 4) if asked else 0.0,
            "refusals": int(stats.get("shadow_refusals", 0)),
            "faults": int(stats.get("shadow_faults", 0)),
            "by_kind": dict(self._kinds),
        }

    async def start(self, port: KernelPort) -> None:
        self._port = port

    async def run(self, port: KernelPort) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._stats = port.stats()
            self._file.close()

    async def flush(self) -> None:
        """The file is closed, and so written, when the edge stops."""
