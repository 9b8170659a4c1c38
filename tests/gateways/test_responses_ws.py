"""The Responses API over real sockets, the cases of the Open Responses suite among them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from .fakes import PIECES, Served, receive, serve, until_closed

pytestmark = pytest.mark.anyio
TERMINALS = {"response.completed", "response.incomplete", "response.failed", "error"}


@contextlib.asynccontextmanager
async def client(served: Served, path: str = "/v1/responses", **options: Any) -> AsyncIterator[ClientConnection]:
    url = f"ws://127.0.0.1:{served.gateway.port}{path}"
    async with connect(url, proxy=None, max_size=None, **options) as ws:
        yield ws


async def create(ws: ClientConnection, text: str = "Say hello.", **fields: Any) -> None:
    fields = {"input": [{"type": "message", "role": "user", "content": text}], "max_output_tokens": 5, **fields}
    await ws.send(json.dumps({"type": "response.create", "model": "tiny", **fields}))


async def response(ws: ClientConnection) -> list[dict[str, Any]]:
    """The events of the next response, up to its terminal."""
    events = [await receive(ws)]
    while events[-1]["type"] not in TERMINALS:
        events.append(await receive(ws))
    return events


def said(events: list[dict[str, Any]]) -> str:
    text: str = events[-1]["response"]["output"][0]["content"][0]["text"]
    assert text == "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return text


async def test_websocket_response() -> None:
    """Open Responses: one response, every event numbered, the text whole."""
    async with serve() as served:
        for path in ("/v1/responses", "/responses"):
            async with client(served, path) as ws:
                await create(ws)
                events = await response(ws)
                assert said(events) == "".join(PIECES)
                assert [event["sequence_number"] for event in events] == list(range(len(events)))
                assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_websocket_sequential_responses_and_continuation() -> None:
    """Open Responses: the second request sends only what is new."""
    async with serve() as served, client(served) as ws:
        await create(ws, "One")
        first = (await response(ws))[-1]["response"]
        await create(ws, "Two", previous_response_id=first["id"])
        second = (await response(ws))[-1]["response"]
        assert second["previous_response_id"] == first["id"] != second["id"]
        contents = [message["content"] for message in served.text.requests[1].messages or ()]
        assert contents == ["One", "".join(PIECES), "Two"]


async def test_websocket_reconnect_recovers_with_full_input() -> None:
    """Open Responses, E7: a new connection knows nothing of the old one, says so, and serves the whole input."""
    async with serve() as served:
        async with client(served) as ws:
            await create(ws)
            old = (await response(ws))[-1]["response"]["id"]
        async with client(served) as ws:
            await create(ws, previous_response_id=old)
            (error,) = await response(ws)
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
            await create(ws)
            assert said(await response(ws))


FAULTS: list[dict[str, Any]] = [
    {"model": "none"},
    {"tools": [{"type": "function", "name": "f"}]},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
    {"max_output_tokens": "many"},
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_websocket_failed_continuation_evicts_the_parent(fault: dict[str, Any]) -> None:
    """Open Responses: whatever it failed for."""
    async with serve() as served, client(served) as ws:
        await create(ws)
        parent = (await response(ws))[-1]["response"]["id"]
        await create(ws, previous_response_id=parent, **fault)
        (error,) = await response(ws)
        assert 400 <= error["status"] < 500 and error["error"]["code"] != "previous_response_not_found"
        await create(ws, previous_response_id=parent)
        assert (await response(ws))[-1]["error"]["code"] == "previous_response_not_found"
        await create(ws)
        assert said(await response(ws))


async def test_f14_pipelined_requests_of_a_lane_come_one_after_the_other() -> None:
    """F14: also when the client sends them all at once; another lane is not held up."""
    async with serve(token_s=0.002) as served, client(served) as ws:
        for number in range(3):
            await create(ws, f"{number}", metadata={"n": str(number)}, max_output_tokens=20)
        await create(ws, "quick", stream_id="b", max_output_tokens=1)
        done: list[str] = []
        while len(done) < 4:
            event = await receive(ws)
            if event["type"] in TERMINALS:
                done.append(event.get("stream_id") or event["response"]["metadata"]["n"])
        assert done == ["b", "0", "1", "2"]


async def test_cancel_and_go_on() -> None:
    """A4, E3."""
    async with serve() as served, client(served) as ws:
        await create(ws, max_output_tokens=10**6)
        await create(ws, "next")
        while (await receive(ws))["type"] != "response.output_text.delta":
            pass
        await ws.send('{"type":"response.cancel"}')
        last = (await response(ws))[-1]
        assert last["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert last["response"]["usage"]["output_tokens"] > 0
        assert (await response(ws))[-1]["type"] == "response.incomplete"


async def test_a1_work_ends_with_the_connection_and_what_waits_is_never_started() -> None:
    """A1, E-01."""
    async with serve() as served:
        async with client(served) as ws:
            for _ in range(5):
                await create(ws, max_output_tokens=10**6)
            await receive(ws)
            ws.transport.abort()
        await served.text.until_live(0)
        assert len(served.text.requests) == 1
        assert served.hub.admission.requests == {}


async def test_c6_the_code_on_which_clients_connect_again() -> None:
    """C6, G2."""
    async with serve(max_connection_age_s=0.1) as served, client(served) as ws:
        frames, code = await until_closed(ws)
        assert [frame["error"]["code"] for frame in frames] == ["websocket_connection_limit_reached"]
        assert code == 1012


async def test_drain_finishes_what_runs_and_refuses_the_rest() -> None:
    """G1, G2: nothing waits for ever, and never 1000 or 1001 with a response unfinished."""
    async with serve() as served, client(served) as ws:
        await create(ws, max_output_tokens=10**6)
        await create(ws)
        await receive(ws)
        draining = asyncio.create_task(served.gateway.drain())
        frames, code = await until_closed(ws)
        await draining
        assert [frame["type"] for frame in frames if frame["type"] in TERMINALS] == ["response.incomplete", "error"]
        assert frames[-1]["error"]["code"] == "draining"
        assert code == 1012


async def test_binary_frames_close_1003() -> None:
    async with serve() as served, client(served) as ws:
        await ws.send(b"{}")
        assert (await until_closed(ws))[1] == 1003


async def test_a_failure_of_the_engine_is_typed_and_the_connection_lives() -> None:
    """E1, E9."""
    async with serve() as served, client(served) as ws:
        served.text.steer = lambda request: (request.messages or ({"content": ""},))[-1]["content"]
        await create(ws, "boom")
        failed = (await response(ws))[-1]
        assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "server_error")
        await create(ws, "refuse")
        (error,) = await response(ws)
        assert (error["status"], error["error"]["type"]) == (429, "rate_limit_error")
        await create(ws)
        assert said(await response(ws))
