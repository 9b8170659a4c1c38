"""The whole way: socket, text edge, kernel with its actors, an executor without a model, and back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from mainspring.core.clock import MonotonicClock
from mainspring.core.config import ExecutorConfig
from mainspring.core.edge import Edge
from mainspring.core.kernel import Kernel
from mainspring.core.messages import StepLaunch
from mainspring.core.registry import Registry
from mainspring.plugins.executors.thread import ExecutorThread
from mainspring.plugins.gateways.ws import WebSocketGateway
from mainspring.plugins.settings import Config, ServerConfig
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.text.chat_template import ChatTemplate
from mainspring.plugins.text.detokenize import byte_alphabet
from mainspring.plugins.text.edge import TextEdge
from mainspring.plugins.text.tokenizer import TextModel

from ..text.vocabularies import FACTS, byte_level
from .fakes import collect, generate, receive, send, text_of, until_closed

pytestmark = pytest.mark.anyio

ANSWER = "The quick brown fox 👩‍👩‍👧🙂漢字é jumps. ".encode()


class Engine:
    """A kernel that answers every prompt with ``answer``, byte by byte, over and over; ``broken`` makes a step fail."""

    def __init__(self, stall_s: float = 120.0, answer: bytes = ANSWER, step_s: float = 0.0) -> None:
        clock = MonotonicClock()
        config = Config(server=ServerConfig(port=0), executor=ExecutorConfig(stall_s=stall_s), paranoid=True)
        model = TextModel(byte_level(), FACTS)
        self.answer, self.step_s, self.num_steps = answer, step_s, 0
        self.broken = self.hang = False
        self.hanging = threading.Event()
        self.text = TextEdge(config, model)
        self.gateway = WebSocketGateway(None, config, self.text)
        edges: list[Edge] = [self.text, self.gateway]
        self.kernel = Kernel(config, Registry(), clock, self._executor, edges, progress=lambda _: None)
        self._starts: dict[str, int] = {}
        vocab = byte_level().get_vocab()
        self._ids = {byte: vocab[char] for char, byte in byte_alphabet().items()}

    def _executor(self, kernel: Kernel) -> ExecutorThread:
        executor = FakeExecutor(
            num_blocks=500,
            vocab_size=300,
            max_context=4096,
            end_token_ids=(299,),
            script=self._script,
            on_step=self._step,
            now=kernel.now,
            step_s=self.step_s,
        )
        return ExecutorThread(executor, kernel.post_threadsafe, kernel.now)

    def _script(self, rid: str, position: int, checksum: int) -> int:
        start = self._starts.setdefault(rid, position)
        return self._ids[self.answer[(position - start) % len(self.answer)]]

    def _step(self, launch: StepLaunch) -> None:
        self.num_steps += bool(launch.rows)
        if self.hang:
            self.hang = False
            self.hanging.wait(20)
        if self.broken:
            self.broken = False
            raise RuntimeError("the device fell off the bus")

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[ClientConnection]:
        async with connect(f"ws://127.0.0.1:{self.gateway.port}/v1/stream", proxy=None, max_size=None) as ws:
            assert (await receive(ws))["models"] == ["fake"]
            yield ws

    async def until_free(self) -> None:
        """Wait until nothing runs and every block is back."""
        async with asyncio.timeout(10):
            while self.text.num_live or self.kernel.stats()["kv_used_blocks"]:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def engine(stall_s: float = 120.0, **options: Any) -> AsyncIterator[Engine]:
    made = Engine(stall_s, **options)
    made.gateway.bind()
    async with made.kernel.running():
        yield made


async def test_text_arrives_whole_and_usage_counts_every_token() -> None:
    """D1, D4, D5, E2: bytes of characters come one by one; a stop string over several tokens never leaks."""
    async with engine() as made, made.client() as ws:
        await generate(ws, "whole", max_tokens=len(ANSWER), return_token_ids=True)
        await generate(ws, "stopped", stop=["own fox"])
        frames = await collect(ws, "whole", "stopped")
        whole, stopped = frames["whole"], frames["stopped"]
        assert text_of(whole) == ANSWER.decode()
        assert not any("\ufffd" in frame.get("text", "") for frame in whole)
        assert [token for frame in whole for token in frame.get("tokens", ())] == [made._ids[byte] for byte in ANSWER]
        assert whole[-1]["usage"]["output"] == len(ANSWER)
        assert text_of(stopped) == "The quick br"
        assert (stopped[-1]["reason"], stopped[-1]["stop"]) == ("stop", "own fox")


async def test_refusals_of_every_layer_have_their_code() -> None:
    async with engine() as made, made.client() as ws:
        cases: dict[str, tuple[dict[str, Any], str, str]] = {
            "schema": ({"max_tokens": 0}, "invalid_request", "max_tokens"),
            "sampler": ({"temperature": -1}, "invalid_request", "temperature"),
            "host": ({"prompt": "x" * 5000}, "context_length_exceeded", "prompt"),
            "text": ({"stop_token_ids": [300]}, "invalid_request", "stop_token_ids[0]"),
        }
        for stream_id, (fields, _, _) in cases.items():
            await generate(ws, stream_id, **{"prompt": "Hi"} | fields)
        frames = await collect(ws, *cases)
        for stream_id, (_, code, param) in cases.items():
            (error,) = frames[stream_id]
            assert (error["code"], error["param"]) == (code, param)


async def test_blocks_come_back_after_cancel_and_disconnect() -> None:
    """A1, A4, A5, E-01, E-05."""
    async with engine() as made:
        async with made.client() as ws:
            ids = [f"s{number}" for number in range(20)]
            for stream_id in ids:
                await generate(ws, stream_id, max_tokens=4000, ignore_eos=True)
            await send(ws, type="cancel", id="s0")
            await send(ws, type="cancel", id="s1")
            assert {(await collect(ws, "s0"))["s0"][-1]["reason"]} == {"cancelled"}
            ws.transport.abort()
        await made.until_free()
        stats = made.kernel.stats()
        assert (stats["running"], stats["waiting"]) == (0, 0)


async def test_an_executor_that_raises_costs_one_typed_terminal_each_and_no_connection() -> None:
    """E1, E-16: the engine is rebuilt behind the open connection."""
    async with engine() as made, made.client() as ws:
        ids = [f"s{number}" for number in range(5)]
        for stream_id in ids:
            await generate(ws, stream_id, max_tokens=4000)
        while (await receive(ws))["type"] != "delta":
            pass
        made.broken = True
        ended: dict[str, str] = {}
        while len(ended) < 5:
            frame = await receive(ws)
            if frame["type"] in ("done", "error"):
                assert frame["id"] not in ended
                ended[frame["id"]] = frame["code"]
        assert ended == dict.fromkeys(ids, "server_error")
        async with asyncio.timeout(10):
            while not made.kernel.ready:
                await asyncio.sleep(0.001)
        await generate(ws, "again", max_tokens=3)
        assert text_of((await collect(ws, "again"))["again"]) == "The"


async def test_drain_ends_streams_with_terminals_and_closes_1012() -> None:
    """G1, E-09, E-13."""
    async with engine() as made, made.client() as ws:
        await generate(ws, "a", max_tokens=4000)
        while (await receive(ws))["type"] != "delta":
            pass
        draining = asyncio.create_task(made.kernel.drain(0.05))
        frames = [await receive(ws)]
        while frames[-1]["type"] in ("delta", "goaway"):
            frames.append(await receive(ws))
        assert {"type": "goaway", "reason": "drain", "grace_ms": 30_000} in frames
        assert (frames[-1]["type"], frames[-1]["reason"]) == ("done", "cancelled")
        await draining
        stopping = asyncio.create_task(made.gateway.drain())
        assert await until_closed(ws) == ([], 1012)
        await stopping


async def test_the_responses_api_all_the_way() -> None:
    """E2, E7: text, continuation through the chat template, warm-up, and metrics of all of it."""
    async with engine() as made:
        source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        made.text.model._template = ChatTemplate(source, {}, "test")
        async with connect(f"ws://127.0.0.1:{made.gateway.port}/v1/responses", proxy=None) as ws:

            async def run(**fields: Any) -> dict[str, Any]:
                await send(ws, type="response.create", max_output_tokens=len(ANSWER), **fields)
                while (event := await receive(ws))["type"] not in (
                    "response.completed",
                    "response.incomplete",
                    "error",
                ):
                    pass
                return event

            first = (await run(input="hi"))["response"]
            assert first["output"][0]["content"][0]["text"] == ANSWER.decode()
            assert first["usage"]["output_tokens"] == len(ANSWER)
            second = (await run(input="more", previous_response_id=first["id"]))["response"]
            assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"] + len(ANSWER)
            warm = await run(input="hi", generate=False)
            assert (warm["type"], warm["response"]["usage"]["output_tokens"]) == ("response.completed", 0)
        await made.until_free()
        page = made.gateway._metrics.page()[0].decode() if made.gateway._metrics else ""
        assert f'mainspring:generation_tokens_total{{model_name="fake"}} {2.0 * len(ANSWER)}' in page
        assert 'mainspring:num_requests_running{model_name="fake"} 0.0' in page
        assert 'mainspring:request_success_total{finished_reason="length",model_name="fake"}' in page


async def test_a_client_that_stops_reading_pauses_in_the_scheduler_and_others_go_on() -> None:
    """B5, E-08: through the real text edge and host."""
    async with engine() as made, made.client() as slow, made.client() as quick:
        await generate(slow, "a", max_tokens=4000, ignore_eos=True)
        while (await receive(slow))["type"] != "delta":
            pass
        (rid,) = made.text._live
        made.text.pause([rid])
        assert made.kernel.actors is not None
        record = made.kernel.actors.host.records[rid]
        assert record.num_pending <= 2  # in as many steps that were in flight
        before = len(record.output_ids) + record.num_pending
        await generate(quick, "b", max_tokens=200, ignore_eos=True)
        assert (await collect(quick, "b"))["b"][-1]["usage"]["output"] == 200
        assert made.text._live[rid].num_output_tokens == before
        made.text.resume([rid])
        frame = await receive(slow)
        while frame["type"] == "delta":
            frame = await receive(slow)
        assert frame["usage"]["output"] > 3000


@pytest.mark.slow
async def test_e1_an_executor_that_hangs_costs_one_typed_terminal_each_and_no_connection() -> None:
    """E1, E-16: noticed after ``executor.stall_s``; a new executor takes over behind the open connections."""
    async with engine(stall_s=0.2) as made, made.client() as ws:
        ids = [f"s{number}" for number in range(3)]
        for stream_id in ids:
            await generate(ws, stream_id, max_tokens=4000, ignore_eos=True)
        while (await receive(ws))["type"] != "delta":
            pass
        made.hang = True
        ended: dict[str, str] = {}
        while len(ended) < 3:
            frame = await receive(ws)
            if frame["type"] in ("done", "error"):
                assert frame["id"] not in ended
                ended[frame["id"]] = frame["code"]
        assert ended == dict.fromkeys(ids, "server_error")
        async with asyncio.timeout(10):
            while not made.kernel.ready:
                await asyncio.sleep(0.001)
        await generate(ws, "again", max_tokens=3)
        assert text_of((await collect(ws, "again"))["again"]) == "The"
        made.hanging.set()
