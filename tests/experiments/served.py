"""A served experiment without a model: its file, its engine, requests and failures."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from mainspring.core.config import SamplerConfig
from mainspring.core.messages import Down
from mainspring.core.policy import Executor
from mainspring.plugins.engine import Engine
from mainspring.plugins.experiments.served.start import Served, start
from mainspring.plugins.settings import Config, JournalConfig, SchedulerConfig
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.text.edge import TextEdge

TWO = '[arms.fcfs.scheduler]\nuse = "fcfs"\n[arms.other.scheduler]\n'


def write(folder: Path, live: str, arms: str = TWO + 'use = "shortest"\n') -> Path:
    path = folder / "served.toml"
    path.write_text(
        f'name = "served"\nbaseline = "fcfs"\nprimary = "ttft_mean"\nwarmup = 0.0\n[live]\n{live}\n{arms}',
        encoding="utf-8",
    )
    return path


def config(**scheduler: Any) -> Config:
    return Config(
        scheduler=SchedulerConfig(**{"token_budget": 32, "max_running": 2} | scheduler),
        sampler=SamplerConfig(use="scripted"),
        journal=JournalConfig(path=""),
    )


def begin(
    folder: Path,
    live: str,
    arms: str = TWO + 'use = "shortest"\n',
    step_s: float = 0.002,
    text: TextEdge | None = None,
) -> Served:
    def make(settings: Config) -> Executor:
        return FakeExecutor(256, settings.allocator.block_size, 49_152, step_s=step_s, now=time.monotonic)

    path = write(folder, live, arms)
    return start(path, config(), folder / "out", gateways=False, make_executor=make, text=text)


async def ask(engine: Engine, number: int, prompt: int = 8, output: int = 4, tenant: str = "default") -> Any:
    ids = [20 + (number * 7 + at) % 1000 for at in range(prompt)]
    result = await engine.generate(
        {"token_ids": ids, "max_tokens": output, "temperature": 0, "ignore_eos": True, "tenant": tenant}
    )
    return ids, result


async def fail(engine: Engine) -> None:
    """The executor fails and is built again."""
    before = engine.kernel.actors
    engine.kernel.post(Down("executor", "on purpose"))
    while engine.kernel.actors in (None, before):
        await asyncio.sleep(0.01)
