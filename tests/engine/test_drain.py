"""A drain takes what was accepted before it, prompts on their way to ids among it, and nothing after."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

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

    def chat(self, messages: Any) -> tuple[int, ...]:
        return self.encode(" ".join(message["content"] for message in messages))


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Engine, SlowModel]]:
    async with served_slowly() as both:
        yield both


@contextlib.asynccontextmanager
async def served_slowly(*settings: str) -> AsyncIterator[tuple[Engine, SlowModel]]:
    config, model = load(None, [*QUIET, *settings]).config, SlowModel()
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


def generate(name: str) -> dict[str, Any]:
    return {"type": "generate", "id": name, "prompt": name, "max_tokens": 3, "ignore_eos": True}


def respond(name: str) -> dict[str, Any]:
    return {"type": "response.create", "input": name, "max_output_tokens": 3, "ignore_eos": True}


def realtime(name: str) -> dict[str, Any]:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": name}]}
    response = {"conversation": "none", "input": [item], "max_output_tokens": 3}
    return {"type": "response.create", "response": response}


@pytest.mark.parametrize(
    ("path", "make", "ends", "refusal"),
    [
        ("/v1/stream", generate, {"done"}, "error"),
        ("/v1/responses", respond, {"response.completed", "response.incomplete"}, "error"),
        ("/v1/realtime", realtime, {"response.done"}, "error"),
    ],
)
async def test_what_waits_for_its_turn_when_the_drain_starts_is_answered(
    path: str, make: Any, ends: set[str], refusal: str
) -> None:
    """E-13, G1: requests behind others of their connection or lane were accepted too; new ones are refused."""
    async with contextlib.AsyncExitStack() as stack:
        engine, model = await stack.enter_async_context(served_slowly("server.max_running_per_connection=1"))
        url = f"ws://127.0.0.1:{engine.gateways[0].port}{path}"
        ws = await stack.enter_async_context(connect(url, proxy=None))
        for name in ("a", "b", "c"):
            await ws.send(json.dumps(make(name)))
        await asyncio.to_thread(model.encoding.wait, 10)
        (connection,) = engine.gateways[0]._connections
        while connection.num_waiting < 2:
            await asyncio.sleep(0.001)
        draining = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        await ws.send(json.dumps(make("late")))
        await ws.send("{}")  # answered at once, so the one before it has been read
        early = await next_of(ws, refusal)
        if path != "/v1/responses":  # there it stands in its lane
            assert (early.get("code") or early["error"]["code"]) == "draining"
            early = await next_of(ws, refusal)
        assert (early.get("code") or early["error"]["code"]) == "invalid_request"
        assert not draining.done()
        model.gate.set()
        for _ in range(3):
            ended = await next_of(ws, *ends, refusal)
            assert ended["type"] in ends, ended
            usage = ended.get("usage") or ended["response"]["usage"]
            assert usage.get("output", usage.get("output_tokens")) == 3
        if path == "/v1/responses":
            assert (await next_of(ws, *ends, refusal))["error"]["code"] == "draining"
        await draining


async def test_what_waits_when_the_drain_may_last_no_longer_is_ended() -> None:
    """One terminal for each, then 1012; nothing is left behind."""
    settings = ("server.max_running_per_connection=1", "server.drain_s=0.1")

    async def read_all(ws: ClientConnection) -> list[dict[str, Any]]:
        frames = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                frames.append(json.loads(await ws.recv()))
        return frames

    async with served_slowly(*settings) as (engine, model):
        ws = await connect(f"ws://127.0.0.1:{engine.gateways[0].port}/v1/stream", proxy=None)
        for name in ("a", "b", "c"):
            await ws.send(json.dumps(generate(name)))
        await asyncio.to_thread(model.encoding.wait, 10)
        reading = asyncio.create_task(read_all(ws))
        await engine.drain()
    ended = [frame for frame in await reading if frame["type"] in ("done", "error")]
    assert sorted(frame["id"] for frame in ended) == ["a", "b", "c"]
    assert {frame.get("reason") or frame["code"] for frame in ended} <= {"cancelled", "draining"}
    assert ws.protocol.close_rcvd is not None and ws.protocol.close_rcvd.code == 1012


def post(prompt: str) -> tuple[bytes, bytes]:
    """Head and body."""
    body = json.dumps({"prompt": prompt, "max_tokens": 3, "ignore_eos": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode(), body


async def answer_to(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    (size,) = (int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length"))
    return int(head.split()[1]), json.loads(await reader.readexactly(size))


async def test_a_post_that_was_taken_is_answered_and_one_whose_body_comes_later_is_refused() -> None:
    """E-13 over HTTP: what counts is when the whole request was there."""
    async with served_slowly('gateways=["http"]') as (engine, model):
        pairs = [await asyncio.open_connection("127.0.0.1", engine.gateways[0].port) for _ in range(3)]
        (early, late, new), (head, body) = pairs, post("x")
        early[1].write(head + body)
        late[1].write(head)
        await asyncio.to_thread(model.encoding.wait, 10)
        draining = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        late[1].write(body)
        new[1].write(head + body)
        for reader, _ in (late, new):
            status, answer = await answer_to(reader)
            assert (status, answer["error"]["code"]) == (503, "draining")
        model.gate.set()
        status, answer = await answer_to(early[0])
        assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
        for _, writer in pairs:
            writer.close()
        await draining
