"""A drain takes what was accepted before it, prompts on their way to ids among it, and nothing after."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from mainspring.core.errors import ConfigError
from mainspring.core.messages import Control, Emit, Message
from mainspring.plugins.config_file import load
from mainspring.plugins.engine import Engine
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.text.edge import TextEdge
from mainspring.plugins.text.tokenizer import TextModel

from ..text.vocabularies import FACTS, byte_level

pytestmark = pytest.mark.anyio
QUIET = ["journal.path=", "sampler.use=scripted", "server.port=0", "server.drain_s=20"]


class SlowModel(TextModel):
    """Every prompt waits for the gate on its thread."""

    def __init__(self) -> None:
        super().__init__(byte_level(), FACTS)
        self.encoding, self.gate = threading.Event(), threading.Event()

    def encode(self, text: str) -> tuple[int, ...]:
        self.encoding.set()
        self.gate.wait(20)
        return super().encode(text)


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Engine, SlowModel]]:
    config, model = load(None, QUIET).config, SlowModel()
    engine = Engine(
        config,
        gateways=True,
        make_executor=lambda: FakeExecutor(64, config.allocator.block_size, vocab_size=300),
        text=TextEdge(config, model),
    )
    async with engine:
        try:
            yield engine, model
        finally:
            model.gate.set()


async def next_of(ws: Any, *kinds: str) -> dict[str, Any]:
    while (frame := json.loads(await ws.recv()))["type"] not in kinds:
        pass
    return dict(frame)


async def test_a_prompt_that_is_being_encoded_when_the_drain_starts_is_answered(
    slow: tuple[Engine, SlowModel],
) -> None:
    """E-13: it was taken before the signal.  The client hears of the drain at once, and is refused anything new."""
    engine, model = slow
    url = f"ws://127.0.0.1:{engine.gateways[0].port}/v1/stream"
    async with connect(url, proxy=None) as ws:
        await ws.send('{"type":"generate","id":"a","prompt":"early","max_tokens":3,"ignore_eos":true}')
        await asyncio.to_thread(model.encoding.wait, 10)
        draining = asyncio.create_task(engine.drain())
        assert (await next_of(ws, "goaway"))["reason"] == "drain"
        await ws.send('{"type":"generate","id":"b","prompt":"late","max_tokens":3}')
        refused = await next_of(ws, "error")
        assert (refused["id"], refused["code"]) == ("b", "draining")
        with pytest.raises(InvalidStatus, match="503"):
            await connect(url, proxy=None)
        assert not draining.done()
        model.gate.set()
        done = await next_of(ws, "done", "error")
        assert (done["id"], done.get("reason"), done["usage"]["output"]) == ("a", "length", 3)
        await draining


async def test_a_drain_waits_no_longer_than_it_may(slow: tuple[Engine, SlowModel]) -> None:
    engine, model = slow
    engine.config = load(None, [*QUIET[:-1], "server.drain_s=0.1"]).config
    running = asyncio.create_task(engine.generate({"prompt": "x"}))
    await asyncio.to_thread(model.encoding.wait, 10)
    async with asyncio.timeout(10):
        await engine.drain()
    model.gate.set()
    result = await running
    assert result.error is not None and result.error["code"] == "draining"


async def test_a_gateway_is_told_of_the_drain_if_it_asked_and_one_that_raises_stops_nobody(
    slow: tuple[Engine, SlowModel],
) -> None:
    """Like what the kernel delivers: by ``consumes``, and a failure is the gateway's own."""
    engine, _ = slow
    told: list[str] = []

    class Told:
        def __init__(self, name: str, *consumes: type[Message]) -> None:
            self.name, self.consumes = name, consumes

        def deliver(self, message: Message) -> None:
            told.append(self.name)
            raise ValueError("no")

    engine.gateways = [Told("deaf", Emit), Told("raises", Control), Told("last", Control)]
    with capture_logs() as lines:
        await engine.drain()
    assert told == ["raises", "last"]
    assert [line["event"] for line in lines].count("delivery_failed") == 2


@pytest.mark.parametrize(
    ("gateways", "why"), [('["ws","ws"]', "'ws' stands there twice"), ('["http","ws"]', "leave ws out")]
)
def test_gateways_that_want_the_same_address(gateways: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Engine(load(None, [*QUIET, f"gateways={gateways}"]).config, gateways=True)
