"""Whatever a peer sends in whatever order: no crash, nothing left running, memory bounded, the next client served."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any

import pytest
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from ..wire.schemas import check_server_frame
from .fakes import Served, collect, generate, serve

pytestmark = pytest.mark.anyio

WORDS = ["generate", "cancel", "resume", "ping", "response.create", "response.cancel", "response.steer", "x"]
WORDS += ["session.update", "conversation.item.create", "conversation.item.delete", "root", "none", "user", "message"]
FIELDS: tuple[str, ...] = (
    "type",
    "id",
    "prompt",
    "token_ids",
    "messages",
    "input",
    "model",
    "stop",
    "stream_id",
    "token",
    "after",
)
FIELDS += ("item", "response", "session", "role", "content", "item_id", "response_id", "conversation", "max_tokens")


def junk(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {chance.choice(FIELDS): junk(chance, depth + 1) for _ in range(chance.randrange(4))}
    return (None, True, chance.randrange(-5, 100), chance.random(), chance.choice(WORDS), "a")[kind]


def message(chance: random.Random, tokens: list[str]) -> str:
    """Garbage, wrong and right frames of both protocols."""
    name, dice = f"s{chance.randrange(6)}", chance.randrange(20)
    frame: dict[str, Any]
    if dice == 0:
        return "".join(chr(chance.randrange(1, 0x2FF)) for _ in range(chance.randrange(30)))
    if dice <= 3:
        return json.dumps(junk(chance))
    if dice <= 5:
        frame = {"type": chance.choice(WORDS), "id": name, **{chance.choice(FIELDS): junk(chance) for _ in range(2)}}
    elif dice <= 8:
        frame = {"type": "cancel", "id": name}
    elif dice <= 10:
        frame = {
            "type": "resume",
            "id": name,
            "token": chance.choice(tokens or ["t"]),
            "after": chance.randrange(-1, 5),
        }
    elif dice <= 13:
        frame = {"type": "response.create", "input": "hi", "stream_id": name, "max_output_tokens": chance.randrange(9)}
    elif dice == 14:
        frame = {"type": "response.cancel", "stream_id": name}
    elif dice == 15:
        frame = {"type": "ping", "x": junk(chance)}
    elif dice == 16:
        frame = realtime_event(chance)
    else:
        frame = {"type": "generate", "id": name, "prompt": "hi", "max_tokens": chance.randrange(12)}
        frame |= {"retain_s": chance.choice([0, 0.01, 30]), "progress": chance.random() < 0.2}
        frame |= {"coalesce_ms": chance.choice([0, 3]), "deadline_ms": chance.choice([5, 1000])}
    return json.dumps(frame)


def realtime_event(chance: random.Random) -> dict[str, Any]:
    """Right and nearly right events of the Realtime API."""
    text = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    kind = chance.choice(["conversation.item.create", "response.create", "response.cancel", "session.update"])
    event: dict[str, Any] = {"type": kind, "event_id": "e"}
    if kind == "conversation.item.create":
        event |= {"item": text | {"id": f"i{chance.randrange(5)}"}}
    elif kind == "response.create":
        event |= {
            "response": {"max_output_tokens": chance.randrange(9), "conversation": chance.choice(["auto", "none"])}
        }
    return event | ({chance.choice(FIELDS): junk(chance)} if chance.random() < 0.3 else {})


async def visit(served: Served, chance: random.Random, tokens: list[str], count: int) -> int:
    """One connection that sends up to ``count`` messages; returns how many."""
    path = chance.choice(["/v1/stream", "/v1/responses", "/v1/realtime"])
    sent = 0
    async with connect(f"ws://127.0.0.1:{served.gateway.port}{path}", proxy=None, max_size=None) as ws:
        reading = asyncio.create_task(read(ws, tokens))
        with contextlib.suppress(ConnectionClosed):
            for _ in range(count):
                await ws.send(message(chance, tokens))
                sent += 1
                if chance.random() < 0.02:
                    await asyncio.sleep(0.002)
        if chance.random() < 0.3:
            ws.transport.abort()
        else:
            await ws.close()
        await reading
    return sent


async def read(ws: ClientConnection, tokens: list[str]) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            frame = json.loads(await ws.recv())
            check_server_frame(frame)
            if "resume" in frame and frame["type"] == "start":
                tokens.append(frame["resume"])
                del tokens[:-20]


async def storm(num_messages: int) -> None:
    with structlog.testing.capture_logs() as lines:
        async with serve(token_s=0.001) as served:
            chance, tokens, sent = random.Random(7), list[str](), 0
            while sent < num_messages:
                sent += sum(await asyncio.gather(*(visit(served, chance, tokens, 100) for _ in range(8))))
                lines[:] = [line for line in lines if line["log_level"] == "error"]
            served.hub.shelf.cancel_all("test")
            await served.text.until_live(0)
            admission = served.hub.admission
            assert (admission.requests, admission.num_queued, served.hub.num_paused) == ({}, 0, 0)
            assert served.hub.watchers == {}
            async with served.client() as ws:
                await generate(ws, "after", max_tokens=2)
                assert (await collect(ws, "after"))["after"][-1]["reason"] == "length"
    assert [line for line in lines if line["log_level"] == "error"] == []


async def test_bodies_of_any_shape_over_http() -> None:
    """Each gets one answer of JSON, and none is a fault of ours."""
    pytest.importorskip("uvicorn")
    from .test_http import http, request, talk

    chance = random.Random(11)
    async with http() as served:
        app_paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
        for _ in range(250):
            body: Any = junk(chance)
            if chance.random() < 0.6:
                message = {"role": chance.choice(["user", "tool", 7]), "content": junk(chance)}
                body = {"messages": [message], "max_tokens": 3, chance.choice(FIELDS): junk(chance)}
            (reply,) = await talk(
                served, request(chance.choice(app_paths), json.dumps(body).encode(), "Connection: close")
            )
            assert reply.status in (200, 400, 404), (body, reply.status, reply.body)
            if not reply.lines:
                assert isinstance(json.loads(reply.body), dict)
        await served.text.until_live(0)


@pytest.mark.slow
async def test_a_few_thousand_messages_in_any_order() -> None:
    await storm(4000)


@pytest.mark.soak
async def test_a_hundred_thousand_messages_in_any_order() -> None:
    await storm(100_000)
