"""A whole server in a process of its own: gateway, text edge, kernel, and an executor that keeps a pace.

    python -m tests.gateways.soak_server [--set KEY=VALUE ...] [--rate TOKENS_PER_S]

Prints its port, then answers each line on standard input: ``memory`` with its resident bytes, ``stats`` with JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainspring.core.config import AllocatorConfig
from mainspring.core.messages import StepLaunch, StepResult
from mainspring.core.policy import ExecutorInfo
from mainspring.plugins.cli.serve import keep_loaded
from mainspring.plugins.config_file import load
from mainspring.plugins.engine import Engine
from mainspring.plugins.text.edge import TextEdge
from mainspring.plugins.text.tokenizer import TextModel

from ..text.vocabularies import FACTS, byte_level

NUM_BLOCKS = 200_000
MAX_CONTEXT = 2_000_000


class PacedExecutor:
    """One token per request and step, ``rate`` steps per second at most."""

    def __init__(self, rate: float, token_id: int) -> None:
        self.info = ExecutorInfo("paced", 300, MAX_CONTEXT, (299,), NUM_BLOCKS)
        self._period, self._token_id, self._due = 1 / rate, token_id, 0.0

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        return self.info

    def close(self) -> None:
        """Nothing to free."""

    def execute(self, launch: StepLaunch, sample: Any) -> StepResult:
        now = time.monotonic()
        self._due = max(self._due + self._period, now)
        time.sleep(self._due - now)
        rids = tuple(row.rid for row in launch.rows if row.samples)
        return StepResult(launch.step, rids, (self._token_id,) * len(rids), (), now, time.monotonic())


async def main(settings: list[str], rate: float) -> None:
    quiet = ["journal.path=", "journal.size=16", "sampler.use=scripted", "server.port=0", "log.level=error"]
    config = load(None, [*quiet, *settings]).config
    token_id = byte_level().get_vocab()["x"]
    assert isinstance(config.allocator, AllocatorConfig)
    engine = Engine(
        config,
        gateways=True,
        make_executor=lambda: PacedExecutor(rate, token_id),
        text=TextEdge(config, TextModel(byte_level(), FACTS)),
    )
    async with engine:
        keep_loaded()
        say(engine.gateways[0].port)
        while line := await asyncio.to_thread(sys.stdin.readline):
            say(rss_bytes() if line == "memory\n" else json.dumps(figures(engine)))


def figures(engine: Engine) -> dict[str, float]:
    gateway = engine.gateways[0]
    hub = gateway._hub
    own = {"live": engine.text.num_live, "connections": len(gateway._connections), "paused": hub.num_paused}
    return {**engine.kernel.stats(), **own, "slow_closed": hub.num_slow_closed, "cpu_s": sum(os.times()[:2])}


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def say(what: object) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--rate", type=float, default=20.0)
    args = parser.parse_args()
    asyncio.run(main(args.set, args.rate))
