"""Whatever a peer sends in whatever order: no crash, nothing left running, memory bounded, the next client served.

All surfaces at once: llm.v1, Responses, Realtime, and bodies over HTTP where the extra is installed.
"""

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
from .test_cors import kinds

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
POST_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize")
FIELDS += ("item", "response", "session", "role", "content", "item_id", "response_id", "conversation", "max_tokens")


def junk(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind == 6:
        return [junk(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {chance.choice(FIELDS): junk(chance, depth + 1) for _ in range(chance.randrange(4))}
    return (None, True, chance.randrange(-5, 100), chance.random(), chance.choice(WORDS), "a")[kind]


def message(chance: random.Random, tokens: list[str]) -> str | bytes:
    """Garbage, wrong and right frames of all protocols; bytes that are no UTF-8 end their connection."""
    if chance.random() < 0.004:
        return chance.randbytes(chance.randrange(40))
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
                await ws.send(message(chance, tokens), text=chance.random() < 0.9 or None)
                sent += 1
                if chance.random() < 0.02:
                    await asyncio.sleep(0.002)
        if chance.random() < 0.3:
            ws.transport.abort()
        else:
            await ws.close()
        await reading
    return sent


class Words:
    """A model's text."""

    def encode(self, text: str) -> tuple[int, ...]:
        return (1,)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        return "hi"


def body(chance: random.Random) -> bytes:
    """Garbage, wrong and right bodies of all paths."""
    dice = chance.randrange(8)
    if dice == 0:
        return chance.randbytes(chance.randrange(60))
    if dice == 1:
        return json.dumps(junk(chance)).encode()
    message = {"role": "user", "content": "hi"}
    fields: dict[str, Any] = {"max_tokens": chance.randrange(1, 6), "stream": chance.random() < 0.4}
    fields |= chance.choice([{"prompt": "hi"}, {"messages": [message]}, {"input": "hi"}, {"tokens": [1]}])
    if dice <= 3:
        fields |= {chance.choice(FIELDS): junk(chance)}
    if "input" in fields:
        fields["max_output_tokens"] = fields.pop("max_tokens")
    return json.dumps(fields).encode()


async def post(served: Served, chance: random.Random, count: int) -> int:
    """Connections with up to ten bodies each; now and then one goes in the middle.  Each whole one gets an answer."""
    from .test_http import request, talk

    for _ in range(count // 10):
        bodies = [request(chance.choice(POST_PATHS), body(chance)) for _ in range(10)]
        if chance.random() < 0.1:
            _, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
            writer.write(bodies[0][: chance.randrange(len(bodies[0]))])
            await asyncio.sleep(0)
            writer.transport.abort() if chance.random() < 0.5 else writer.close()
            continue
        for reply in await talk(served, *bodies):
            assert reply.status in (200, 400, 404, 429, 503), (reply.status, reply.body)
            if not reply.lines:
                assert isinstance(json.loads(reply.body), dict)
    return count


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
        async with serve(token_s=0.001, kind=kinds()[-1]) as served:
            served.text.model = Words()  # type: ignore[attr-defined]
            chance, tokens, sent, num_posters = random.Random(7), list[str](), 0, 2 * (len(kinds()) - 1)
            while sent < num_messages:
                visits = [visit(served, chance, tokens, 100) for _ in range(8)]
                posts = [post(served, chance, 100) for _ in range(num_posters)]
                sent += sum(await asyncio.gather(*visits, *posts))
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
