"""Edge actors own a task or a thread; only they wait.  Here is their contract.

An edge gets messages through ``deliver`` (synchronous, must not block) and posts through its ``KernelPort``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .config import Config
from .messages import Message
from .policy import ExecutorInfo, SampleOutput


class KernelPort(Protocol):
    """What an edge may do with the kernel.  ``post`` belongs to the event loop's thread."""

    @property
    def config(self) -> Config: ...
    @property
    def info(self) -> ExecutorInfo: ...
    @property
    def ready(self) -> bool:
        """New requests are served."""

    @property
    def healthy(self) -> bool:
        """The process is worth keeping."""

    @property
    def draining(self) -> bool: ...
    def now(self) -> float: ...
    def post(self, *messages: Message) -> None: ...
    def post_threadsafe(self, *messages: Message) -> None: ...
    def stats(self) -> dict[str, float]:
        """Gauges and counters of host and allocator."""


class Edge(Protocol):
    """A gateway, the text edge, or anything else that talks to the outside."""

    name: str
    consumes: tuple[type[Message], ...]

    def deliver(self, message: Message) -> None: ...
    async def start(self, port: KernelPort) -> None:
        """Get ready; the kernel serves once every edge has started."""

    async def run(self, port: KernelPort) -> None:
        """Work until cancelled."""

    async def flush(self) -> None:
        """Return once everything delivered so far has been passed on."""


class ExecutorEdge(Protocol):
    """The executor behind its thread: the kernel never waits for the model.

    ``launch`` messages go in through ``deliver``; a ``StepResult`` or a ``Down`` is posted for each that has rows.
    """

    async def load(self, progress: Callable[[str], None]) -> ExecutorInfo: ...
    def serve(self, sample: Callable[[Any, Any], SampleOutput]) -> None:
        """Steps may come now; ``sample`` is the sampler's array half."""

    def deliver(self, message: Message) -> None: ...
    def stalled_for(self) -> float:
        """Seconds that the oldest launched step has been without a result; 0 when none is out."""

    def abandon(self) -> None:
        """Let nothing more come out; what hangs in a thread cannot be stopped, only left behind."""

    async def close(self) -> None: ...
