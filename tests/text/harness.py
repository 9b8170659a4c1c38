"""A kernel port that records what is posted, and a text edge running on it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from mainspring.core.messages import Emit, EmitRow, Finish, FinishReason, Message, Submit, Timing, Usage
from mainspring.core.policy import ExecutorInfo
from mainspring.plugins.schema import parse
from mainspring.plugins.settings import Config
from mainspring.plugins.text.edge import TextEdge
from mainspring.plugins.text.events import Delta, Ended, TextEvent
from mainspring.plugins.text.tokenizer import TextModel

from .vocabularies import FACTS, byte_level

Kind = TypeVar("Kind", bound=Message)


class Port:
    """A KernelPort with a clock that only tests move."""

    def __init__(self, vocab_size: int = 300) -> None:
        self.config = Config()
        self.info = ExecutorInfo("test", vocab_size, 1000, (), 8)
        self.ready = self.healthy = True
        self.draining = False
        self.clock = 100.0
        self.posted: list[Message] = []
        self.fault: Exception | None = None

    def now(self) -> float:
        return self.clock

    def post(self, *messages: Message) -> None:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.posted += messages

    def post_threadsafe(self, *messages: Message) -> None:
        raise AssertionError("the text edge posts on the loop only")

    def stats(self) -> dict[str, float]:
        return {}

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [message for message in self.posted if isinstance(message, kind)]


class GatedModel(TextModel):
    """Encoding of texts that contain ``slow`` waits for the gate."""

    def __init__(self) -> None:
        super().__init__(byte_level(), FACTS)
        self.gate = threading.Event()
        self.threads: set[int] = set()
        self.texts: list[str] = []

    def encode(self, text: str) -> tuple[int, ...]:
        self.threads.add(threading.get_ident())
        self.texts.append(text)
        if "slow" in text:
            self.gate.wait(10)
        return super().encode(text)


class Sink:
    """Keeps the events of one request and checks their grammar."""

    def __init__(self) -> None:
        self.events: list[TextEvent] = []

    def __call__(self, event: TextEvent) -> None:
        assert not self.ended, f"after the end: {event}"
        self.events.append(event)

    @property
    def ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], Ended)

    @property
    def end(self) -> Ended:
        assert isinstance(self.events[-1], Ended), self.events
        return self.events[-1]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, (Delta, Ended)))

    @property
    def token_ids(self) -> tuple[int, ...]:
        return sum((event.token_ids for event in self.events if isinstance(event, (Delta, Ended))), ())


async def until(condition: Callable[[], object]) -> None:
    """Let the loop and its threads work until ``condition`` holds."""
    with anyio.fail_after(60):
        while not condition():
            await anyio.sleep(0.001)


class Engine:
    """The edge under test and the hands of the host."""

    def __init__(self, edge: TextEdge, port: Port) -> None:
        self.edge, self.port = edge, port

    def open(self, prompt: str = "hi", **fields: Any) -> tuple[str, Sink]:
        """Start a request; its extra fields go through the schema."""
        sink = Sink()
        given = {"prompt": prompt} if prompt else {}
        return self.edge.open(parse(given | fields), sink), sink

    async def accepted(self, prompt: str = "hi", **fields: Any) -> tuple[str, Sink]:
        """Start a request and accept it like the host does."""
        rid, sink = self.open(prompt, **fields)
        await until(lambda: any(submit.rid == rid for submit in self.port.of(Submit)))
        await self.emit((rid, ""))
        return rid, sink

    async def emit(self, *rows: tuple[str, str] | tuple[str, str, Finish]) -> None:
        """One step: per row the rid, the text whose bytes are its new ids, and the end if it ended."""
        await self.emit_ids(*((row[0], tuple(row[1].encode()), *row[2:]) for row in rows))

    async def emit_ids(self, *rows: Any) -> None:
        self.edge.deliver(Emit(1, tuple(EmitRow(*row) for row in rows)))
        for _ in range(3):
            await anyio.lowlevel.checkpoint()


def finish(reason: FinishReason, output: int, stop: str | int | None = None, **more: Any) -> Finish:
    return Finish(reason, Usage(2, 0, output), Timing(100.0, finished=101.0), stop=stop, **more)


@asynccontextmanager
async def engine(model: TextModel | None = None, port: Port | None = None) -> AsyncIterator[Engine]:
    """A running edge; leaving the block cancels it like a stopping kernel does."""
    port = port or Port()
    edge = TextEdge(port.config, model or TextModel(byte_level(), FACTS))
    await edge.start(port)
    async with anyio.create_task_group() as group:
        group.start_soon(edge.run, port)
        await anyio.lowlevel.checkpoint()
        yield Engine(edge, port)
        group.cancel_scope.cancel()


@contextmanager
def opened(gate: threading.Event) -> Iterator[None]:
    """Never leave a thread behind a closed gate, whatever the test does."""
    try:
        yield
    finally:
        gate.set()
