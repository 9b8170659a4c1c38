"""Before the WebSocket: health, readiness, paths, upgrade, Origin, Host, subprotocols."""

from __future__ import annotations

import asyncio
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from mainspring.core.messages import Control
from mainspring.plugins.gateways.door import Door
from mainspring.plugins.gateways.keys import load_keys
from mainspring.plugins.gateways.pages import Pages
from mainspring.plugins.gateways.ws import SOCKETS, WebSocketGateway
from mainspring.plugins.settings import ServerConfig
from mainspring.plugins.wire.responses_history import ResponseStore

from .fakes import FakePort, collect, generate, handshake, receive, send, serve
from .test_cors import kinds

pytestmark = pytest.mark.anyio
GET = "GET {} HTTP/1.1\nHost: localhost\n"


async def test_health_and_ready_follow_the_kernel() -> None:
    """E-06: health is about the process, ready about new work."""
    async with serve() as served:
        assert [(await served.http(GET.format(path)))[0] for path in ("/health", "/ready")] == [200, 200]
        status, headers, body = await served.http(GET.format("/health?x=1"))
        assert (status, json.loads(body)) == (200, {"status": "ok"})
        assert headers["content-type"] == "application/json"
        served.port.ready = False
        assert [(await served.http(GET.format(path)))[0] for path in ("/health", "/ready")] == [200, 503]
        served.port.healthy = False
        status, _, body = await served.http(GET.format("/health"))
        assert (status, json.loads(body)) == (503, {"status": "failed"})


async def test_health_answers_while_streams_run() -> None:
    """B7, C2."""
    async with serve() as served, served.client() as ws:
        ids = [f"s{number}" for number in range(8)]
        for stream_id in ids:
            await generate(ws, stream_id, max_tokens=10**6)
        reading = asyncio.create_task(collect(ws, *ids))
        for _ in range(20):
            assert (await served.http(GET.format("/health")))[0] == 200
        assert served.text.num_live == 8
        for stream_id in ids:
            await send(ws, type="cancel", id=stream_id)
        assert {frames[-1]["reason"] for frames in (await reading).values()} == {"cancelled"}


async def test_head_has_no_body() -> None:
    async with serve() as served:
        status, headers, body = await served.http("HEAD /health HTTP/1.1\nHost: localhost\n")
        assert (status, body) == (200, "")
        assert int(headers["content-length"]) > 0


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /v1/streams HTTP/1.1", 404),
        ("GET /v1/completions HTTP/1.1", 404),
        ("GET /v1/responses HTTP/1.1", 426),
        ("GET /v1/stream HTTP/1.1", 426),
        ("HEAD /v1/stream HTTP/1.1", 426),
        ("DELETE /health HTTP/1.1", 405),
    ],
)
async def test_other_requests_get_an_answer_that_helps(request_line: str, status: int) -> None:
    """F10: never a hang, never an accept that closes."""
    async with serve() as served:
        got, headers, body = await served.http(f"{request_line}\nHost: localhost\n")
        assert got == status
        if request_line.startswith("GET"):
            assert "/v1/" in json.loads(body)["error"]["message"]
        if status == 426:
            assert headers["upgrade"] == "websocket"
        if status == 405:
            assert headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("offered", "selected"),
    [([], None), (["nope"], None), (["nope", "llm.v1"], "llm.v1"), (["llm.v1"], "llm.v1")],
)
async def test_no_offer_of_subprotocols_is_refused(offered: list[str], selected: str | None) -> None:
    """F7; B8: a compression offer is declined."""
    async with serve() as served:
        protocols = [Subprotocol(name) for name in offered] or None
        async with connect(served.url, proxy=None, subprotocols=protocols, compression="deflate") as ws:
            assert ws.subprotocol == selected
            assert ws.protocol.extensions == []


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [
        (None, True),
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:8000", True),
        ("https://app.example", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://localhost:80@evil.example", False),
        ("null", False),
    ],
)
async def test_origin(origin: str | None, accepted: bool) -> None:
    """F9."""
    async with serve(allow_origins=("https://app.example",)) as served:
        attempt = connect(served.url, proxy=None, origin=None if origin is None else Origin(origin))
        if accepted:
            async with attempt:
                return
        with pytest.raises(InvalidStatus) as refused:
            await attempt
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("rebound.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("[bad", 403),
    ],
)
async def test_host_on_loopback(host: str, status: int) -> None:
    """F9: a page that points its own name at 127.0.0.1 is no local program."""
    async with serve() as served:
        assert (await served.http(f"GET /health HTTP/1.1\nHost: {host}\n"))[0] == status
        if status == 403:
            head = handshake().decode().replace("Host: localhost", f"Host: {host}").replace("\r\n", "\n")
            assert (await served.http(head))[0] == 403


async def test_bound_to_the_network_takes_any_host_and_no_browser_origin() -> None:
    port = FakePort()
    pages = Pages(port, ("tiny",), 0, lambda: (b"", ""), ResponseStore(0))
    server = ServerConfig(host="0.0.0.0")
    assert Door(port, server, "0.0.0.0", load_keys(server), SOCKETS, pages).origins == [None]
    async with serve(host="0.0.0.0") as served:
        assert (await served.http("GET /health HTTP/1.1\nHost: llm.example\n"))[0] == 200


async def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    """G1, G3: handshakes 503 with Retry-After, new generations ``draining``, running ones and health go on."""
    async with serve(token_s=0.002) as served, served.client() as ws:
        await generate(ws, "old", max_tokens=100)
        while not served.text.num_live:
            await ws.recv()
        served.port.draining = True
        served.gateway.deliver(Control("drain"))
        with pytest.raises(InvalidStatus) as refused:
            await connect(served.url, proxy=None)
        assert refused.value.response.status_code == 503
        assert int(refused.value.response.headers["Retry-After"]) > 0
        assert (await served.http(GET.format("/health")))[0] == 200
        status, headers, body = await served.http(GET.format("/ready"))
        assert (status, json.loads(body), "retry-after" in headers) == (503, {"status": "draining"}, True)
        await generate(ws, "new")
        (error,) = (await collect(ws, "new"))["new"]
        assert (error["code"], error["status"]) == ("draining", 503)
        frame = await receive(ws)
        while frame["type"] in ("delta", "goaway"):
            frame = await receive(ws)
        assert (frame["id"], frame["reason"], frame["usage"]["output"]) == ("old", "length", 100)


async def test_not_ready_refuses_the_handshake_with_503() -> None:
    async with serve() as served:
        served.port.ready = False
        with pytest.raises(InvalidStatus) as refused:
            await connect(served.url, proxy=None)
        assert refused.value.response.status_code == 503


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(
    ("target", "status"),
    [("http://[::1", 400), ("http://[v1/x]/a", 400), ("http://localhost/health", 200), ("//health", 404), ("*", 404)],
)
async def test_targets_of_every_form(
    kind: type[WebSocketGateway], target: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One that can't be read is the peer's fault and no reason for a log line."""
    async with serve(kind=kind) as served:
        assert (await served.http(GET.format(target)))[0] == status
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/nothing"])
@pytest.mark.parametrize("rest", ["", "x" * 10**6])
async def test_a_request_with_a_body_is_told_what_would_serve_it(path: str, rest: str) -> None:
    """Whether or not it goes on sending, while it reads, or has asked for leave before."""
    async with serve() as served:
        request = f"POST {path} HTTP/1.1\nHost: localhost\nExpect: 100-continue\nContent-Length: {2 + len(rest)}\n"
        status, headers, body = await served.http(request, "{}" + rest)
        assert (status, headers["allow"], headers["connection"]) == (405, "GET, HEAD", "close")
        assert "gateways" in json.loads(body)["error"]["message"]
        async with served.client() as ws:  # nobody else is disturbed
            await generate(ws, "a", max_tokens=1)
            assert (await collect(ws, "a"))["a"][-1]["type"] == "done"
