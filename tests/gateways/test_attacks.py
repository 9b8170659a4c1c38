"""Peers that mean harm: each costs little, ends with a legal close or a cut, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest
import structlog
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection

from mainspring.plugins.gateways import connection, switch
from mainspring.plugins.gateways.guarded import MAX_REPLY_BYTES, GuardedConnection

from .fakes import Served, client_frame, collect, generate, handshake, receive, serve

pytestmark = pytest.mark.anyio
COMPLETE = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"


def piece(payload: bytes, opcode: int, last: bool) -> bytes:
    """A fragment."""
    whole = client_frame(payload, opcode)
    return bytes([whole[0] & (0xFF if last else 0x7F)]) + whole[1:]


async def test_what_came_before_a_close_in_the_same_segment_starts_nothing() -> None:
    """A1, A5: the frame is read after the close is known."""
    async with serve() as served:
        sock, _ = await served.raw()
        frame = client_frame(b'{"type":"generate","id":"a","prompt":"hold"}')
        await asyncio.get_running_loop().sock_sendall(sock, frame * 3 + client_frame(struct.pack("!H", 1000), 8))
        with sock:
            async with asyncio.timeout(20):
                while not served.gateway._connections:
                    await asyncio.sleep(0)
            await asyncio.sleep(0.05)
            await served.text.until_live(0)
            assert served.hub.admission.requests == {}


async def until_gone(served: Served, others: int = 0) -> None:
    async with asyncio.timeout(20):
        while len(served.gateway._connections) > others:
            await asyncio.sleep(0.002)


async def send_until_cut(sock: socket.socket, block: bytes, times: int) -> int:
    """How many blocks it took."""
    loop = asyncio.get_running_loop()
    for number in range(times):
        try:
            await asyncio.wait_for(loop.sock_sendall(sock, block), 20)
        except OSError:
            return number
    return times


async def test_pings_by_one_who_does_not_read_the_answers() -> None:
    """B1, E-08: the library answers every ping and would keep the answers for ever."""
    async with serve() as served, served.client() as healthy:
        sock, _ = await served.raw(receive_buffer=4096)
        with sock:
            flood, loop = client_frame(b"x" * 125, 9) * 400_000, asyncio.get_running_loop()
            with pytest.raises(TimeoutError):  # it is not even read any more
                await asyncio.wait_for(loop.sock_sendall(sock, flood), 1)
            sizes = [one._ws.transport.get_write_buffer_size() for one in served.gateway._connections]
            assert MAX_REPLY_BYTES < max(sizes) < 3 * MAX_REPLY_BYTES
            await generate(healthy, "a", max_tokens=3)
            assert (await collect(healthy, "a"))["a"][-1]["reason"] == "length"


async def test_pings_by_one_who_reads_are_all_answered() -> None:
    """More of them than may wait."""
    count = 5 * MAX_REPLY_BYTES // 127
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        writer.write(handshake() + client_frame(b"x" * 125, 9) * count + client_frame(struct.pack("!H", 1000), 8))
        data = await asyncio.wait_for(reader.read(-1), 20)
        assert data.count(b"\x8a\x7d" + b"x" * 125) == count
        writer.close()


class SlowTransport:
    """Keeps what is written until ``send`` takes it; tells nobody, as one below its high water mark."""

    waiting, reads = 0, True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def pause_reading(self) -> None:
        self.reads = False

    def send(self, leave: int) -> None:
        self.waiting = min(self.waiting, leave)


def test_only_answers_that_wait_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that pings much and reads slowly never has many of them waiting, though never none: reading goes on."""
    transport = SlowTransport()
    guarded = GuardedConnection.__new__(GuardedConnection)
    guarded.transport = transport  # type: ignore[assignment]

    def reply(_: ServerConnection, data: bytes) -> None:
        transport.waiting += len(data)

    monkeypatch.setattr(ServerConnection, "data_received", reply)
    for _ in range(4 * MAX_REPLY_BYTES // 1024):
        guarded.data_received(bytes(1024))
        transport.send(leave=1)
    assert transport.reads
    for _ in range(MAX_REPLY_BYTES // 1024):
        guarded.data_received(bytes(1024))
    assert not transport.reads


async def test_a_message_in_endless_empty_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: their bytes never reach the limit, yet each takes memory."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.2)
    async with serve() as served:
        sock, _ = await served.raw()
        with sock:
            await asyncio.get_running_loop().sock_sendall(sock, piece(b"", 1, last=False))
            assert await send_until_cut(sock, piece(b"", 0, last=False) * 20_000, 100) < 100
            await until_gone(served)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"\x81\xff" + struct.pack("!Q", 2**62) + bytes(4), 1009),  # announces more than any memory
        (b"\x81\xff" + struct.pack("!Q", 2**63) + bytes(4), 1009),  # a length that can't be
        (b"\x81\x05hello", 1002),  # not masked
        (b"\xf1\x80" + bytes(4), 1002),  # reserved bits: as if compressed
        (client_frame(b"x", 3), 1002),  # an opcode that does not exist
        (piece(b"", 9, last=False), 1002),  # a control frame in pieces
        (client_frame(b"{}", 0), 1002),  # a continuation of nothing
        (client_frame(b"\x03", 8), 1002),  # half a close code
        (client_frame(struct.pack("!H", 1005), 8), 1002),  # a code that nobody may send
        (client_frame(struct.pack("!H", 1000) + b"\xff", 8), 1007),  # a reason that is no text
        (client_frame(b'{"type":"ping","x":"\xc3'), 1007),  # cut in the middle of a character
        (client_frame(b'{"x":"\xed\xa0\x80"}'), 1007),  # half of a surrogate pair
    ],
)
async def test_frames_that_the_protocol_forbids_close_with_its_code(
    frame: bytes, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5, E-10, A1: no traceback; what ran is cancelled although the peer keeps the connection; others go on."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT_S", 0.2)
    with structlog.testing.capture_logs() as lines:
        async with serve() as served, served.client() as healthy:
            sock, data = await served.raw()
            loop = asyncio.get_running_loop()
            with sock:
                await loop.sock_sendall(sock, client_frame(b'{"type":"generate","id":"a","prompt":"hold"}'))
                await served.text.until_live(1)
                await loop.sock_sendall(sock, frame)
                await served.text.until_live(0)
                async with asyncio.timeout(20):
                    while chunk := await loop.sock_recv(sock, 65536):
                        data += chunk
            assert struct.pack("!H", code) in data[-130:]
            await generate(healthy, "b", max_tokens=2)
            assert (await collect(healthy, "b"))["b"][-1]["reason"] == "length"
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []


async def test_a_message_that_is_dribbled_holds_nobody_up() -> None:
    async with serve() as served, served.client() as healthy:
        sock, _ = await served.raw()
        loop = asyncio.get_running_loop()
        with sock:
            for byte in client_frame(b'{"type":"generate","id":"a","prompt":"x","max_tokens":2}'):
                await loop.sock_sendall(sock, bytes([byte]))
            await generate(healthy, "b", max_tokens=2)
            assert (await collect(healthy, "b"))["b"][-1]["reason"] == "length"
            data = b""
            while b'"done"' not in data:
                data += await loop.sock_recv(sock, 65536)


async def test_many_ids_many_times() -> None:
    """E-02: starts, cancels and starts again of the same few ids without waiting for anything: one terminal each."""
    async with serve(token_s=0, max_running_per_connection=4, max_queued_per_connection=8) as served:
        async with served.client() as ws:
            for number in range(600):
                name = f"s{number % 5}"
                await ws.send(f'{{"type":"generate","id":"{name}","prompt":"x","max_tokens":{1 + number % 7}}}')
                if number % 3 == 0:
                    await ws.send(f'{{"type":"cancel","id":"{name}"}}')
            started = ended = refused = 0
            async with asyncio.timeout(20):
                while started + refused < 600 or ended < started:
                    frame = await receive(ws)
                    started += frame.get("seq") == 0
                    ended += "seq" in frame and frame["type"] in ("done", "error")
                    refused += frame["type"] == "error" and "id" not in frame
            assert refused > 0 and started > 0 and started + refused == 600 and started == ended
        await served.text.until_live(0)
        assert (served.hub.admission.requests, served.hub.admission.num_queued) == ({}, 0)


@pytest.mark.parametrize("begun", [b"PO", b"POST /v1/completions HTTP/1.1\r\nHost: loc", COMPLETE + b'{"pro'])
async def test_a_request_over_http_that_never_ends_is_cut(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow heads and bodies hold a connection no longer than they may."""
    pytest.importorskip("uvicorn")
    from mainspring.plugins.gateways.http import HttpGateway

    monkeypatch.setattr(switch, "HEAD_S", 0.2)
    async with serve(kind=HttpGateway, write_deadline_s=0.2) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        writer.write(begun)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(-1) == b""
        writer.close()


@pytest.mark.parametrize("path", [b"/v1/completions", b"/nowhere"])
@pytest.mark.parametrize("begun", [b"P", b"PO", b"POST /v1/completions HTTP/1.1\r\nHost: loc"])
async def test_a_later_request_that_never_ends_is_cut_too(
    path: bytes, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One finished request buys no further time: the library forgets a kept connection at the first byte."""
    pytest.importorskip("uvicorn")
    from mainspring.plugins.gateways.http import HttpGateway

    monkeypatch.setattr(switch, "HEAD_S", 0.2)
    async with serve(kind=HttpGateway) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        body = b'{"prompt":"x","max_tokens":2}'
        once = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)
        async with asyncio.timeout(20):
            for _ in range(2):  # what is whole is answered on the same connection
                writer.write(once)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
            writer.write(begun)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read(-1) == b""
        writer.close()


async def test_the_rest_of_a_body_that_has_been_answered_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvicorn")
    from mainspring.plugins.gateways.http import HttpGateway

    monkeypatch.setattr(switch, "HEAD_S", 0.2)
    async with serve(kind=HttpGateway) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.gateway.port)
        async with asyncio.timeout(20):
            writer.write(COMPLETE.replace(b"/v1/completions", b"/nowhere"))
            assert (await reader.readuntil(b"\r\n")).split()[1] == b"404"
            writer.write(b"x")
            with contextlib.suppress(ConnectionResetError):
                await reader.read(-1)
        writer.close()


DEEP = "[" * 950 + "]" * 950  # can be read, and could not be written inside of an answer


@pytest.mark.parametrize("padding", ["", "x" * 100_000])  # read on the loop, or with more of the stack on a thread
@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/stream", '{"type":"ping","x":%s,"y":"%s"}'),
        ("/v1/responses", '{"type":"response.create","input":"hi","user":%s,"instructions":"%s"}'),
        ("/v1/responses", '{"type":"response.steer","input":%s,"previous_response_id":"%s"}'),
        (
            "/v1/realtime",
            '{"type":"response.create","response":{"conversation":"none","metadata":{"a":%s},"instructions":"%s"}}',
        ),
    ],
)
async def test_what_is_repeated_can_be_written(path: str, event: str, padding: str) -> None:
    """A field that comes back in the answer, nested deeper than could be encoded there: refused, and the session goes
    on."""
    async with serve() as served:
        url = f"ws://127.0.0.1:{served.gateway.port}{path}"
        async with connect(url, proxy=None, max_size=None, ping_interval=None) as ws:
            for _ in range(2):
                await ws.send(event % (DEEP, padding))
                frame = await receive(ws)
                while frame["type"] in ("hello", "session.created"):
                    frame = await receive(ws)
                assert (frame.get("code") or frame["error"]["code"]) == "invalid_json"


async def test_what_is_repeated_can_be_written_over_http() -> None:
    pytest.importorskip("uvicorn")
    from .test_http import http, post

    async with http() as served:
        for fields in ('{"input":"hi","user":%s}', '{"input":"hi","metadata":%s}', '{"input":"hi","stream":"no"}'):
            reply = await post(served, "/v1/responses", (fields.replace("%s", DEEP)).encode())
            assert reply.status == 400, reply.body
