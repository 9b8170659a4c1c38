"""The client behind blocking calls, for programs without an event loop; safe from several threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import anyio.from_thread

from ..wire.llm_v1_frames import DeltaFrame, DoneFrame, HelloFrame
from .client import Event, Generation, LLMClient, connect


class SyncGeneration:
    """Iterate over its events; the last one is a DoneFrame, or ServerError is raised."""

    def __init__(self, portal: anyio.from_thread.BlockingPortal, generation: Generation) -> None:
        self._portal, self._generation = portal, generation

    @property
    def done(self) -> DoneFrame | None:
        """The end, once it has come."""
        return self._generation.done

    def cancel(self) -> None:
        """Ask the server to stop; the terminal event still comes."""
        self._portal.call(self._generation.cancel)

    def text(self) -> str:
        """Wait for the end; the whole text."""
        return "".join(event.text for event in self if isinstance(event, DeltaFrame))

    def __iter__(self) -> Iterator[Event]:
        while (event := self._portal.call(self._next)) is not None:
            yield event

    async def _next(self) -> Event | None:
        return await anext(self._generation, None)


class SyncClient:
    """One open connection; ``hello`` is the server's greeting."""

    def __init__(self, portal: anyio.from_thread.BlockingPortal, client: LLMClient) -> None:
        self._portal, self._client = portal, client

    @property
    def hello(self) -> HelloFrame:
        return self._client.hello

    def generate(self, **fields: Any) -> SyncGeneration:
        """One generation with the fields of a ``generate`` frame."""
        return SyncGeneration(self._portal, self._client.generate(**fields))

    def ping(self) -> None:
        """Wait for one answer to one ping."""
        self._portal.call(self._client.ping)


@contextlib.contextmanager
def connect_sync(url: str, **options: Any) -> Iterator[SyncClient]:
    """Like ``connect``, with the same options and errors."""
    with (
        anyio.from_thread.start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(connect(url, **options)) as client,
    ):
        yield SyncClient(portal, client)
