"""Plays a list of jobs against a target: every request starts when it is due, whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .arrivals import Job
from .report import Seen, summary

SLOW_READ_S = 0.05  # a slow reader waits so long before it takes the next piece
CANCEL_AFTER = 5  # deltas after which a canceller stops


class Target(Protocol):
    """A server that is driven."""

    async def open(self) -> None:
        """Get ready, before the clock starts.  Raises ConfigError when nobody is there."""

    async def run(self, number: int, job: Job, seen: Seen) -> None:
        """One request to its end; fills in ``seen``."""

    async def close(self) -> None: ...


async def play(target: Target, jobs: Sequence[Job], slo: Mapping[str, float], timeout_s: float) -> dict[str, Any]:
    """The report of a run.  A request that takes longer than ``timeout_s`` counts as failed."""
    loop = asyncio.get_running_loop()
    await target.open()
    seen: list[Seen] = []
    lags: list[float] = []

    async def one(number: int, job: Job, record: Seen) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                record.sent = loop.time()
                await target.run(number, job, record)
        except TimeoutError:
            record.error = "timeout"
        except OSError as error:
            record.error = type(error).__name__
        record.ended = loop.time()

    try:
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for number, job in enumerate(jobs):
                due = start + job.at
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                record = Seen(due, job.kind)
                seen.append(record)
                lags.append(max(0.0, loop.time() - due))
                group.create_task(one(number, job, record))
        took_s = loop.time() - start
    finally:
        await target.close()
    return summary(seen, took_s, lags, slo)
