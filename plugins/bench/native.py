"""The native protocol as a target: requests are spread over a fixed number of connections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ...core.errors import ConfigError
from ..client import LLMClient, ServerError, connect
from ..wire.llm_v1_frames import DeltaFrame
from .arrivals import CANCEL, SLOW, Job
from .report import Seen
from .run import CANCEL_AFTER, SLOW_READ_S


class NativeTarget:
    """``connections`` sockets to ``url``, taken in turns."""

    def __init__(self, url: str, connections: int, key: str | None, fields: dict[str, Any]) -> None:
        """``fields`` are added to every ``generate``."""
        self._url, self._num, self._key, self._fields = url, connections, key, fields
        self._stack = contextlib.AsyncExitStack()
        self._clients: list[LLMClient] = []

    async def open(self) -> None:
        try:
            for _ in range(self._num):
                self._clients.append(await self._stack.enter_async_context(connect(self._url, key=self._key)))
        except ServerError as error:
            await self._stack.aclose()
            raise ConfigError(f"--url: {error}") from error

    async def run(self, number: int, job: Job, seen: Seen) -> None:
        client, now = self._clients[number % self._num], asyncio.get_running_loop().time
        num_deltas = 0
        try:
            generation = client.generate(prompt=job.prompt, max_tokens=job.max_tokens, **self._fields)
            async for event in generation:
                if isinstance(event, DeltaFrame):
                    seen.delta(now(), event.n)
                    num_deltas += 1
                    if job.kind == SLOW:
                        await asyncio.sleep(SLOW_READ_S)
                    elif job.kind == CANCEL and num_deltas == CANCEL_AFTER:
                        await generation.cancel()
            if generation.done is not None:
                seen.reason, seen.num_tokens = generation.done.reason, generation.done.usage.output
        except ServerError as error:
            seen.error = error.code

    async def close(self) -> None:
        await self._stack.aclose()
