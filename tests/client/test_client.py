"""The client library against the real gateway over a fake text edge, and against servers that say odd things."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_raw

from mainspring.client import ServerError, connect, connect_sync
from mainspring.plugins.wire.llm_v1_frames import DeltaFrame, DoneFrame, ProgressFrame, StartFrame

from ..gateways.fakes import PIECES, serve

pytestmark = pytest.mark.anyio

HELLO = {"type": "hello", "protocol": "llm.v1", "server": "x/1", "models": ["m"], "limits": {}, "features": []}


@contextlib.asynccontextmanager
async def scripted(handler: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that does what ``handler`` says; yields its URL, without a path."""
    async with serve_raw(handler, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_events_of_one_generation() -> None:
    async with serve() as served, connect(f"ws://127.0.0.1:{served.gateway.port}") as client:
        assert client.hello.models == ("tiny",)
        events = [event async for event in client.generate(prompt="Hi", max_tokens=5, return_token_ids=True)]
        assert isinstance(events[0], StartFrame)
        assert isinstance(events[-1], DoneFrame)
        deltas = [event for event in events if isinstance(event, DeltaFrame)]
        assert "".join(delta.text for delta in deltas) == "".join(PIECES)
        assert [token for delta in deltas for token in delta.tokens or ()] == [0, 1, 2, 3, 4]
        assert events[-1].usage.output == 5


async def test_many_at_once_and_a_ping() -> None:
    async with serve() as served, connect(served.url) as client:

        async def count(max_tokens: int) -> int:
            total = 0
            async for event in client.generate(prompt="Hi", max_tokens=max_tokens):
                total += event.n if isinstance(event, DeltaFrame) else 0
            return total

        results = await asyncio.gather(*(count(number) for number in range(1, 21)), client.ping())
        assert results[:-1] == list(range(1, 21))


async def test_cancel_ends_with_done() -> None:
    async with serve() as served, connect(served.url) as client:
        generation = client.generate(prompt="Hi", max_tokens=10**6)
        async for event in generation:
            if isinstance(event, DeltaFrame) and event.seq == 3:
                await generation.cancel()
        assert generation.done is not None
        assert generation.done.reason == "cancelled"
        assert generation.done.usage.output >= 3


async def test_leaving_the_block_cancels() -> None:
    async with serve() as served, connect(served.url) as client:
        async with client.generate(prompt="Hi", max_tokens=10**6) as generation:
            async for event in generation:
                if isinstance(event, DeltaFrame):
                    break
        await served.text.until_live(0)
        assert served.text.cancels == ["r0"]


async def test_refusals_raise_and_the_connection_stays() -> None:
    async with serve() as served, connect(served.url) as client:
        with pytest.raises(ServerError) as refused:
            async for _ in client.generate(prompt="Hi", temprature=1):
                pass
        assert (refused.value.code, refused.value.param, refused.value.status) == (
            "unsupported_parameter",
            "temprature",
            400,
        )
        with pytest.raises(ServerError, match="too many requests wait"):
            async for _ in client.generate(prompt="refuse"):
                pass
        held = client.generate(id="x", prompt="hold")
        await held.start()
        with pytest.raises(ServerError, match="in use"):
            await client.generate(id="x", prompt="Hi").start()
        await held.cancel()
        assert [type(event) for event in [event async for event in held]][-1] is DoneFrame


async def test_unknown_frames_and_fields_are_skipped() -> None:
    async def handler(ws: ServerConnection) -> None:
        await ws.send(json.dumps(HELLO | {"news": 1}))
        request = json.loads(await ws.recv())
        for frame in (
            {"type": "goaway", "reason": "drain"},
            {"type": "news", "id": request["id"], "state": "queued"},
            {"type": "delta", "id": "somebody-else", "seq": 0, "text": "no", "n": 1},
            {"type": "delta", "id": request["id"], "seq": 0, "text": "yes", "n": 1, "logprobs": []},
            {
                "type": "done",
                "id": request["id"],
                "seq": 1,
                "reason": "new-reason",
                "usage": USAGE,
                "timing": {},
                "z": 0,
            },
        ):
            await ws.send(json.dumps(frame))
        await ws.wait_closed()

    async with scripted(handler) as url, connect(url) as client:
        events = [event async for event in client.generate(prompt="Hi")]
        assert [type(event) for event in events] == [DeltaFrame, DoneFrame]


USAGE = {"input": 1, "cached": 0, "output": 1}


async def test_a_lost_connection_ends_every_generation_and_ping() -> None:
    async def handler(ws: ServerConnection) -> None:
        await ws.send(json.dumps(HELLO))
        await ws.recv()
        await ws.recv()
        ws.transport.abort()

    async with scripted(handler) as url, connect(url, reconnect=False) as client:

        async def consume() -> None:
            async for _ in client.generate(prompt="Hi"):
                pass

        results = await asyncio.gather(consume(), client.ping(), return_exceptions=True)
        assert [result.code for result in results if isinstance(result, ServerError)] == ["connection_lost"] * 2
        with pytest.raises(ServerError):
            await client.generate(prompt="Hi").start()


async def test_no_server_and_no_greeting() -> None:
    async def rude(ws: ServerConnection) -> None:
        await ws.send("{}")
        await ws.wait_closed()

    with pytest.raises(ServerError, match="cannot connect"):
        async with connect("ws://127.0.0.1:1"):
            pass
    with pytest.raises(ServerError, match="cannot connect"):
        async with connect("http://127.0.0.1:1"):
            pass
    async with scripted(rude) as url:
        with pytest.raises(ServerError, match="does not speak"):
            async with connect(url):
                pass


@pytest.mark.parametrize("times", [1, 3])
async def test_e5_a_generation_survives_its_connection(times: int) -> None:
    """E5: the reader of the events sees every frame once, in order."""
    async with serve(token_s=0.002) as served, connect(served.url) as client:
        events, cuts = [], 0
        async for event in client.generate(prompt="Hi", max_tokens=60, retain_s=30):
            events.append(event)
            if isinstance(event, DeltaFrame) and cuts < times and len(events) >= 5 * (cuts + 1):
                cuts += 1
                client._socket.transport.abort()
        assert [event.seq for event in events if not isinstance(event, ProgressFrame)] == list(range(len(events)))
        text = "".join(event.text for event in events if isinstance(event, DeltaFrame))
        assert text == "".join(PIECES) * 12
        assert len(served.text.requests) == 1
        await client.ping()


async def test_without_retain_a_lost_connection_ends_it_and_the_next_request_connects_again() -> None:
    async with serve() as served, connect(served.url) as client:

        async def lose() -> None:
            async for event in client.generate(prompt="Hi", max_tokens=10**6):
                if isinstance(event, DeltaFrame):
                    client._socket.transport.abort()

        with pytest.raises(ServerError, match="ended"):
            await lose()
        events = [event async for event in client.generate(prompt="Hi", max_tokens=1)]
        assert isinstance(events[-1], DoneFrame)


async def test_a_server_that_stays_away_ends_the_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.plugins.client.client.FIRST_WAIT_S", 0.001)
    async with serve() as served:
        async with connect(served.url) as client:
            generation = client.generate(prompt="Hi", max_tokens=10**6, retain_s=30)
            await anext(generation)
            served.port.ready = False
            client._socket.transport.abort()
            with pytest.raises(ServerError, match="HTTP 503"):
                async for _ in generation:
                    pass
            with pytest.raises(ServerError):
                await client.ping()
        served.hub.shelf.cancel_all("test")


async def test_after_goaway_the_next_request_uses_a_new_connection() -> None:
    async with serve(max_connection_age_s=0.05) as served, connect(served.url) as client:
        first = client._socket
        while not client._leaving and client._lost is None:
            await asyncio.sleep(0.01)
        events = [event async for event in client.generate(prompt="Hi", max_tokens=1)]
        assert isinstance(events[-1], DoneFrame)
        assert client._socket is not first


def use_blocking(url: str) -> tuple[str, str, int]:
    with connect_sync(url) as client:
        client.ping()
        stopped = client.generate(prompt="Hi", max_tokens=10**6)
        for event in stopped:
            if isinstance(event, DeltaFrame):
                stopped.cancel()
        assert stopped.done is not None
        return client.generate(prompt="Hi", max_tokens=5).text(), stopped.done.reason, len(client.hello.models)


async def test_the_blocking_client() -> None:
    async with serve() as served:
        assert await asyncio.to_thread(use_blocking, served.url) == ("".join(PIECES), "cancelled", 1)


async def test_a_wrong_key_is_told_from_a_lost_connection(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[me]\nkey = "right"\n')
    async with serve(keys_file=str(file)) as served:
        with pytest.raises(ServerError) as refused:
            async with connect(served.url, key="wrong"):
                pass
        assert (refused.value.code, refused.value.status) == ("invalid_api_key", 401)
        async with connect(served.url, key="right") as client:
            await client.ping()
