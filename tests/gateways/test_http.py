"""The POST surfaces and the WebSockets on one port; skipped where the extra is not installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from mainspring.plugins.bench.sse import SseReader

from ..wire.schemas import RESPONSES
from .fakes import PIECES, Served, collect, generate, serve

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.anyio
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
WHOLE = "".join(PIECES)


class Reply:
    def __init__(self, status: int, body: bytes, lines: list[bytes]) -> None:
        self.status, self.body, self.lines = status, body, lines

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self.lines if line != b"[DONE]"]


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def http(**server: Any) -> contextlib.AbstractAsyncContextManager[Served]:
    from mainspring.plugins.gateways.http import HttpGateway

    return serve(kind=HttpGateway, **server)


async def talk(served: Served, *requests: bytes) -> list[Reply]:
    """Requests one after the other over one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
    replies = []
    async with asyncio.timeout(20):
        for one in requests:
            writer.write(one)
            parser, lines = SseReader(), list[bytes]()
            while not parser.done and (data := await reader.read(65536)):
                lines += parser.feed(data)
            replies.append(Reply(parser.status or 0, bytes(parser.body), lines))
    writer.close()
    return replies


async def post(served: Served, path: str, fields: Any, *headers: str) -> Reply:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return (await talk(served, request(path, body, *headers)))[0]


async def test_chat_plain_and_streamed() -> None:
    """D1, E2: the same text either way, with usage."""
    async with http() as served:
        plain = await post(served, "/v1/chat/completions", CHAT)
        assert plain.status == 200
        (choice,) = plain.json["choices"]
        assert choice["message"] == {"role": "assistant", "content": WHOLE, "refusal": None}
        assert (choice["finish_reason"], plain.json["object"]) == ("length", "chat.completion")
        assert plain.json["usage"]["completion_tokens"] == 5
        streamed = await post(
            served, "/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        )
        assert streamed.lines[-1] == b"[DONE]"
        *chunks, usage = streamed.events
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == WHOLE
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)
        assert {chunk["object"] for chunk in streamed.events} == {"chat.completion.chunk"}
        assert served.text.requests[0].messages == ({"role": "user", "content": "hi"},)


async def test_completions_and_prompts_of_ids() -> None:
    async with http() as served:
        plain = await post(served, "/v1/completions", {"prompt": "hi", "max_tokens": 5, "ignore_eos": True})
        assert (plain.json["choices"][0]["text"], plain.json["object"]) == (WHOLE, "text_completion")
        streamed = await post(served, "/v1/completions", {"prompt": [1, 2], "max_tokens": 5, "stream": True})
        assert "".join(chunk["choices"][0]["text"] for chunk in streamed.events) == WHOLE
        assert served.text.requests[1].token_ids == (1, 2)
        await post(served, "/v1/completions", {"prompt": ["hi"]})
        assert (served.text.requests[2].prompt, served.text.requests[2].max_tokens) == ("hi", 16)


async def test_responses_over_http_are_those_of_the_websocket() -> None:
    async with http() as served:
        fields = {"input": "hi", "max_output_tokens": 5}
        plain = await post(served, "/v1/responses", fields)
        assert plain.json["output"][0]["content"][0]["text"] == WHOLE
        streamed = await post(served, "/v1/responses", fields | {"stream": True})
        for event in streamed.events:
            RESPONSES.check(event)
        assert streamed.events[-1]["type"] == "response.incomplete"
        refused = await post(served, "/v1/responses", fields | {"previous_response_id": "resp_1", "stream": True})
        assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")


async def test_one_port_serves_websockets_too_and_kept_alive_connections_everything() -> None:
    async with http() as served, served.client() as ws:
        await generate(ws, "a", max_tokens=5)
        body = json.dumps(CHAT).encode()
        again = request("/v1/chat/completions", body)
        page = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        replies = await talk(served, again, page, again)
        assert [reply.status for reply in replies] == [200, 200, 200]
        assert replies[1].json["data"][0]["id"] == "tiny"
        assert (await served.http("GET /health HTTP/1.1\nHost: localhost\n"))[0] == 200
        assert (await collect(ws, "a"))["a"][-1]["type"] == "done"


@pytest.mark.parametrize(
    ("path", "fields", "status", "code", "param"),
    [
        ("/v1/chat/completions", b"{", 400, "invalid_json", None),
        ("/v1/chat/completions", [], 400, "invalid_request", None),
        ("/v1/chat/completions", {}, 400, "invalid_request", "messages"),
        ("/v1/chat/completions", CHAT | {"model": "x"}, 404, "model_not_found", "model"),
        ("/v1/chat/completions", CHAT | {"tools": [{}]}, 400, "unsupported_parameter", "tools"),
        ("/v1/chat/completions", CHAT | {"n": 2}, 400, "unsupported_parameter", "n"),
        ("/v1/chat/completions", CHAT | {"logprobs": True}, 400, "unsupported_parameter", "logprobs"),
        ("/v1/chat/completions", CHAT | {"temprature": 1}, 400, "unsupported_parameter", "temprature"),
        ("/v1/chat/completions", CHAT | {"max_completion_tokens": 0}, 400, "invalid_request", "max_completion_tokens"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "unsupported_parameter", "prompt"),
        ("/v1/responses", {"input": "x", "tools": [{}]}, 400, "unsupported_parameter", "tools"),
        ("/v1/responses", {"input": "x", "stream_id": "a"}, 400, "unsupported_parameter", "stream_id"),
        ("/v1/responses", {"input": "x", "type": "response.cancel"}, 400, "unsupported_parameter", "type"),
        ("/v1/responses", {"input": "x", "type": "response.create"}, 400, "unsupported_parameter", "type"),
        ("/tokenize", {"text": "x"}, 400, "unsupported_parameter", "text"),
        ("/detokenize", {"tokens": [100]}, 400, "invalid_request", "tokens"),
        ("/v1/embeddings", {}, 404, "not_found", None),
    ],
)
async def test_refusals_have_their_status_and_name_the_field(
    path: str, fields: Any, status: int, code: str, param: str | None
) -> None:
    """F-01, F10."""
    async with http() as served:
        reply = await post(served, path, fields)
        assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (status, code, param)
        assert served.text.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_and_failures_of_the_engine(stream: bool) -> None:
    """E1: a refusal is a status; a failure in the middle of a stream is an event."""
    async with http() as served:
        refused = await post(served, "/v1/completions", {"prompt": "refuse", "stream": stream})
        assert (refused.status, refused.json["error"]["code"]) == (429, "queue_full")
        failed = await post(served, "/v1/completions", {"prompt": "boom", "stream": stream})
        if stream:
            assert failed.events[-1]["error"]["code"] == "server_error"
        else:
            assert (failed.status, failed.json["error"]["code"]) == (500, "server_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["close", "rst"])
async def test_a1_work_ends_when_the_client_goes(stream: bool, how: str) -> None:
    """A1, E-01."""
    async with http() as served:
        sock = socket.create_connection(("127.0.0.1", served.gateway.port))
        body = json.dumps({"prompt": "hi", "max_tokens": 10**6, "stream": stream}).encode()
        sock.sendall(request("/v1/completions", body))
        await served.text.until_live(1)
        if how == "rst":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        await served.text.until_live(0)
        assert served.hub.admission.requests == {}


@pytest.mark.slow
async def test_b2_a_client_that_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """B1, B2, E-08: at the write deadline its connection is aborted and its work is cancelled."""
    async with http(token_s=0, write_deadline_s=0.3) as served:
        assert served.gateway._socket is not None
        served.gateway._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # inherited by what it accepts
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        with sock:
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", served.gateway.port))
            body = json.dumps({"prompt": "hi", "max_tokens": 10**9, "stream": True}).encode()
            await loop.sock_sendall(sock, request("/v1/completions", body))
            await served.text.until_live(1)
            await served.text.until_live(0)
            async with asyncio.timeout(10):
                while not served.hub.num_slow_closed:
                    await asyncio.sleep(0.01)
                with contextlib.suppress(ConnectionResetError):
                    while await loop.sock_recv(sock, 65536):
                        pass


async def test_keys_hosts_and_origins_are_checked_as_for_websockets(tmp_path: Path) -> None:
    """F8, F9."""
    file = tmp_path / "keys.toml"
    file.write_text('[me]\nkey = "right"\ntenant = "mine"\n')
    async with http(keys_file=str(file)) as served:
        assert (await post(served, "/v1/chat/completions", CHAT)).status == 401
        assert (await post(served, "/v1/chat/completions", CHAT, "Authorization: Bearer wrong")).status == 401
        right = "Authorization: Bearer right"
        assert (await post(served, "/v1/chat/completions", CHAT | {"tenant": "x"}, right)).status == 200
        assert served.text.tenants == ["mine"]
        assert (await post(served, "/v1/chat/completions", CHAT, right, "Origin: https://evil.example")).status == 403
        evil = request("/v1/chat/completions", b"{}").replace(b"Host: localhost", b"Host: evil.example")
        assert (await talk(served, evil))[0].status == 403


async def test_a_body_beyond_the_limit_is_refused() -> None:
    """E-11."""
    async with http(max_message_bytes=1000) as served:
        reply = await post(served, "/v1/completions", {"prompt": "x" * 2000})
        assert (reply.status, "server.max_message_bytes" in reply.json["error"]["message"]) == (400, True)


async def test_draining_refuses_new_work_and_lets_the_old_end() -> None:
    """G1."""
    async with http(token_s=0.002) as served:
        old = asyncio.create_task(post(served, "/v1/completions", {"prompt": "hi", "max_tokens": 50}))
        await served.text.until_live(1)
        served.port.draining = True
        assert (await post(served, "/v1/completions", {"prompt": "hi"})).status == 503
        await served.gateway.drain()
        assert (await old).json["usage"]["completion_tokens"] == 50


async def test_as_many_connections_as_allowed_are_served_and_one_more_is_not() -> None:
    """The one that asks counts once; uvicorn refuses at its own limit."""
    async with http(max_connections=1) as served:
        _, held = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        held.write(request("/v1/completions", b'{"prompt":"hold"}'))
        await served.text.until_live(1)
        assert (await post(served, "/v1/completions", {"prompt": "hi", "max_tokens": 2})).status == 503
        held.close()
        await served.text.until_live(0)


async def test_a_connection_that_says_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.plugins.gateways.switch.HEAD_S", 0.05)
    async with http() as served:
        for first in (b"", b"PO"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
            writer.write(first)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()


MESSAGE = {
    "model": "tiny",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
}


async def test_messages_plain_and_streamed() -> None:
    async with http() as served:
        plain = (await post(served, "/v1/messages", MESSAGE | {"system": "Be kind.", "stop_sequences": ["x"]})).json
        assert (plain["type"], plain["role"], plain["stop_reason"]) == ("message", "assistant", "max_tokens")
        assert plain["content"] == [{"type": "text", "text": WHOLE}]
        assert plain["usage"] == {"input_tokens": 3, "cache_read_input_tokens": 0, "output_tokens": 5}
        (request_,) = served.text.requests
        assert request_.messages == ({"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"})
        assert request_.stop == ("x",)
        streamed = (await post(served, "/v1/messages", MESSAGE | {"stream": True})).events
        kinds = [event["type"] for event in streamed]
        assert kinds[:2] == ["message_start", "content_block_start"]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        deltas = [event["delta"]["text"] for event in streamed if event["type"] == "content_block_delta"]
        assert "".join(deltas) == WHOLE
        assert streamed[-2]["usage"]["output_tokens"] == 5
        assert streamed[0]["message"]["usage"]["input_tokens"] == 3


@pytest.mark.parametrize(
    ("fields", "status", "kind", "word"),
    [
        ({"tools": [{}]}, 400, "invalid_request_error", "tools"),
        ({"tools": False}, 400, "invalid_request_error", "tools"),
        ({"mcp_servers": 0}, 400, "invalid_request_error", "mcp_servers"),
        ({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", "thinking"),
        ({"model": "x"}, 404, "not_found_error", "model"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"temprature": 1}, 400, "invalid_request_error", "temprature"),
        ({"stop_sequences": 7}, 400, "invalid_request_error", "stop"),
    ],
)
async def test_refusals_of_messages(fields: dict[str, Any], status: int, kind: str, word: str) -> None:
    async with http() as served:
        reply = await post(served, "/v1/messages", MESSAGE | fields)
        assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (status, "error", kind)
        assert word in reply.json["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_of_messages(stream: bool) -> None:
    """E1."""
    async with http() as served:
        served.text.steer = lambda request: (request.messages or ({"content": ""},))[-1]["content"]
        ask = {"max_tokens": 5, "stream": stream}
        refused = await post(served, "/v1/messages", ask | {"messages": [{"role": "user", "content": "refuse"}]})
        assert (refused.status, refused.json["error"]["type"]) == (429, "rate_limit_error")
        failed = await post(served, "/v1/messages", ask | {"messages": [{"role": "user", "content": "boom"}]})
        last = failed.events[-1] if stream else failed.json
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")


async def test_names_in_paths_are_unescaped_once() -> None:
    """On a connection that a POST has kept alive as on any other: an alias may hold what reads like an escape."""
    async with http(model_aliases=("org/50%25",)) as served:
        for path, status in (("org%2F50%2525", 200), ("org/50%2525", 200), ("org%2F50%25", 404)):
            first = request("/tokenize", b"{}")
            replies = await talk(served, first, request(f"/v1/models/{path}", b"", method="GET"))
            plain, _, _ = await served.http(f"GET /v1/models/{path} HTTP/1.1\nHost: localhost")
            assert (replies[1].status, plain) == (status, status), path
