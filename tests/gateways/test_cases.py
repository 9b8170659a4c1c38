"""Cases of the list of real failures that need the whole way from the socket to an executor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from websockets.asyncio.client import connect

from mainspring.plugins.schema import parse
from mainspring.plugins.text.events import Delta, Ended, TextEvent

from .fakes import collect, generate, receive, serve, text_of
from .test_ws_engine import engine

pytestmark = pytest.mark.anyio
STREAMER = """
import sys
from websockets.sync.client import connect
with connect(sys.argv[1], proxy=None) as ws:
    ws.send('{"type":"generate","id":"a","prompt":"x","max_tokens":1000000}')
    for _ in range(5):
        ws.recv()
    print("streaming", flush=True)
    while True:
        ws.recv()
"""


@pytest.mark.slow
async def test_a1_work_ends_when_the_client_is_killed() -> None:
    """A1: SIGKILL, by which a client says nothing itself."""
    async with serve() as served:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STREAMER, served.url, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"streaming\n"
        assert served.text.num_live == 1
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await served.text.until_live(0)
        assert served.text.cancels == ["r0"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["disconnect", "cancel"])
async def test_a2_a_prefill_is_abandoned_at_the_next_chunk(how: str) -> None:
    """A2, E-01: of eight chunks of 0.1 s those that had not begun are never computed, and the blocks come back."""
    async with engine(step_s=0.1) as made, made.client() as ws:
        await generate(ws, "a", "x" * 4000, max_tokens=5)
        async with asyncio.timeout(10):
            while made.num_steps < 2:
                await asyncio.sleep(0.001)
        if how == "disconnect":
            ws.transport.abort()
        else:
            await ws.send('{"type":"cancel","id":"a"}')
            done = (await collect(ws, "a"))["a"][-1]
            assert (done["reason"], done["usage"]["output"]) == ("cancelled", 0)
        await made.until_free()
        assert made.num_steps <= 4  # the one that ran, and one that was on its way


async def test_a5_cancel_races_with_the_start_at_every_distance() -> None:
    """A5: however many turns of the loop lie between the two, there is one terminal and nothing is left."""
    async with engine() as made, made.client() as ws:
        for number in range(60):
            name = f"s{number}"
            await generate(ws, name, max_tokens=4000, ignore_eos=True)
            for _ in range(number % 20):
                await asyncio.sleep(0)
            await ws.send(f'{{"type":"cancel","id":"{name}"}}')
            assert (await collect(ws, name))[name][-1]["reason"] == "cancelled"
        await made.until_free()
        assert not made.gateway._hub or made.gateway._hub.admission.requests == {}


async def test_d2_five_hundred_characters_of_several_tokens_each() -> None:
    """D2: every one is streamed, and none waits for long."""
    whole = "".join(chr(0x4E00 + number) for number in range(500))
    async with engine(answer=whole.encode()) as made, made.client() as ws:
        await generate(ws, "a", max_tokens=1500, ignore_eos=True)
        frames = (await collect(ws, "a"))["a"]
        assert text_of(frames) == whole
        events: list[TextEvent] = []
        made.text.open(parse({"prompt": "x", "max_tokens": 1500, "ignore_eos": True}), events.append)
        async with asyncio.timeout(20):
            while not (events and isinstance(events[-1], Ended)):
                await asyncio.sleep(0.001)
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(event.text for event in deltas) + events[-1].text == whole
    assert max(len(event.token_ids) for event in deltas) <= 4


async def test_d7_a_replacement_character_that_the_model_wrote_arrives() -> None:
    """D7: in the answer, at its end, and in the prompt."""
    answer = "a\ufffdb\ufffd"
    async with engine(answer=answer.encode()) as made, made.client() as ws:
        await generate(ws, "a", "what is \ufffd?", max_tokens=len(answer.encode()), ignore_eos=True)
        assert text_of((await collect(ws, "a"))["a"]) == answer


@pytest.mark.slow
async def test_c1_a_client_that_pings_strictly_survives_huge_prompts() -> None:
    """C1 (the minute of it is in the soaks): encoding and prefill leave the loop free to answer pings."""
    async with engine(step_s=0.002) as made, made.client() as other:
        url = f"ws://127.0.0.1:{made.gateway.port}/v1/stream"
        async with connect(url, proxy=None, ping_interval=0.5, ping_timeout=2) as strict:
            await receive(strict)
            await generate(strict, "a", max_tokens=1500, ignore_eos=True)
            reading = asyncio.create_task(collect(strict, "a"))
            for number in range(2):
                await generate(other, f"h{number}", "word " * 200_000, max_tokens=1)
                refused = (await collect(other, f"h{number}"))[f"h{number}"][-1]
                assert refused["code"] == "context_length_exceeded"
            assert (await reading)["a"][-1]["reason"] == "length"
