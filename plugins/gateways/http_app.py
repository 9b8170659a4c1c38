"""The POST surfaces as an ASGI application: one exchange per request over the same engine as every WebSocket."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import msgspec

from ...core.errors import ClientError
from ..wire.actions import Generate
from ..wire.anthropic_messages import MessageStream, message_error, parse_message
from ..wire.errors import model_not_found, response_not_found
from ..wire.openai_chat import CHAT, TEXT, CompletionStream, parse_body
from ..wire.outbox import Outbox, Source
from ..wire.reading import check_fields, read_object, typed
from ..wire.responses import ResponsesSession
from .cors import Cors
from .generation import Generation
from .http_answers import EVENTS, Send, Style, answer, as_data, as_event, refusal, start
from .hub import Hub
from .keys import ANYBODY, Peer
from .pages import RESPONSES_PATH, Pages

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
MESSAGES = "/v1/messages"
REFUSED = b'{"type":"error"'  # how the one event of a refused response begins


class Tokens(Protocol):
    """The part of the text model that ``/tokenize`` needs."""

    def encode(self, text: str) -> tuple[int, ...]: ...
    def decode(self, token_ids: tuple[int, ...]) -> str: ...


class Exchange:
    """Stands for a connection towards one generation: wakes whoever writes the answer."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.wake = asyncio.Event()

    def poke(self) -> None:
        self.wake.set()

    def ended(self, generation: Generation) -> None:
        self.wake.set()

    def forget(self, generation: Generation) -> None:
        """Nothing of it is kept."""


class Call(NamedTuple):
    """One request with its whole body."""

    body: bytes
    peer: Peer
    received: float
    receive: Receive
    send: Send
    client: Any  # address of the peer

    def fields(self, *known: str) -> dict[str, Any]:
        """The body as an object, with these names only if any are given.  Raises ClientError."""
        fields = read_object(self.body, "the body")
        if known:
            check_fields(fields, known, {})
        return fields


class HttpApp:
    """``identify(headers)`` is who asks, or an error; ``tokens`` gives the text model once it is loaded.

    ``abort(client)`` cuts the connection of the peer with this address.
    """

    def __init__(
        self,
        hub: Hub,
        pages: Pages,
        cors: Cors,
        identify: Callable[[dict[str, str]], Peer | ClientError],
        tokens: Callable[[], Tokens],
        abort: Callable[[Any], None],
    ) -> None:
        self._abort, self._cors = abort, cors
        self._hub, self._pages, self._identify, self._tokens = hub, pages, identify, tokens
        self._names = pages.names
        self.paths: dict[str, Callable[[Call], Awaitable[None]]] = {
            "/v1/chat/completions": functools.partial(self._complete, CHAT),
            "/v1/completions": functools.partial(self._complete, TEXT),
            RESPONSES_PATH: self._respond,
            MESSAGES: self._message,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI: one request."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        shared = [(name.encode(), value.encode()) for name, value in self._cors.headers(headers.get("origin")).items()]

        async def shown(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += shared
            await send(message)

        try:
            await self._handle(scope, headers, receive, shown)
        except ClientError as error:
            refuse = message_error if scope["path"] == MESSAGES else refusal
            await answer(shown, error.kind.status, refuse(error))

    async def _handle(self, scope: Any, headers: dict[str, str], receive: Receive, send: Send) -> None:
        received, path, method = self._hub.port.now(), scope["path"], scope["method"]
        raw_path = scope["raw_path"].decode("latin-1")  # an id may hold what reads like an escape
        if method == "OPTIONS" and (allowed := self._cors.preflight(headers)) is not None:
            more = [(name.encode(), value.encode()) for name, value in allowed.items()]
            await send({"type": "http.response.start", "status": 204, "headers": more})
            await send({"type": "http.response.body", "body": b""})
            return
        peer = self._identify(headers)
        if method in ("GET", "HEAD"):  # on a connection that a POST has kept alive
            await self._page(raw_path, method, peer, send)
            return
        stored = method == "DELETE" and raw_path.startswith(RESPONSES_PATH + "/")
        handle = self.paths.get(path)
        if handle is None and not stored:
            raise ClientError("not_found", f"no such path for {method}; valid paths: {', '.join(self.paths)}")
        if isinstance(peer, ClientError):
            raise peer
        if stored:
            await self._delete(peer, unquote(raw_path.removeprefix(RESPONSES_PATH + "/")), send)
            return
        if method != "POST" or handle is None:
            raise ClientError("invalid_request", f"{path} answers POST")
        self._check_ready()
        try:
            body = await self._body(receive)
        except TimeoutError:
            self._abort(scope["client"])
            return
        self._check_ready()  # which may have changed while the body came
        if body is not None:
            await handle(Call(body, peer, received, receive, send, scope["client"]))

    def _check_ready(self) -> None:
        if self._hub.port.draining or not self._hub.port.ready:
            raise ClientError("draining" if self._hub.port.draining else "overloaded", "the server is not ready")

    async def _delete(self, peer: Peer, response_id: str, send: Send) -> None:
        """Forget a stored response."""
        if not self._hub.responses.drop(peer.name, response_id):
            raise response_not_found(response_id)
        await answer(send, 200, {"id": response_id, "object": "response", "deleted": True})

    async def _page(self, path: str, method: str, peer: Peer | ClientError, send: Send) -> None:
        page = self._pages.find(path)
        if page is None:
            raise ClientError("not_found", f"no such page; valid: {', '.join(self._pages.paths)}")
        if isinstance(peer, ClientError) and (page.private or peer.code == "forbidden"):
            raise peer
        made = page.make(peer if isinstance(peer, Peer) else ANYBODY)
        await send(start(made.status, made.type.encode()))
        await send({"type": "http.response.body", "body": made.body if method == "GET" else b""})

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None if the client has gone.  Raises TimeoutError if nothing more of it comes."""
        body, limit = bytearray(), self._hub.server.max_message_bytes
        while True:
            async with asyncio.timeout(self._hub.server.write_deadline_s):
                message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > limit:
                raise ClientError("invalid_request", f"the body has more than {limit} bytes (server.max_message_bytes)")
            if not message.get("more_body"):
                return bytes(body)

    async def _complete(self, kind: str, call: Call) -> None:
        wanted = parse_body(kind, call.body, self._hub.port.info.max_context)
        self._check_model(wanted.model)
        outbox = Outbox()
        outbox.num_sources = 1
        source = CompletionStream(outbox, wanted, self._names[0], self._hub.port.now, time.time)
        await self._run(call, source, Exchange(outbox), Style(wanted.stream, as_data, b"data: [DONE]\n\n"))

    async def _message(self, call: Call) -> None:
        wanted = parse_message(call.body)
        self._check_model(wanted.model)
        outbox = Outbox()
        outbox.num_sources = 1
        source = MessageStream(outbox, wanted, self._names[0], self._hub.port.now)
        await self._run(call, source, Exchange(outbox), Style(wanted.stream, as_event, refuse=message_error))

    def _check_model(self, model: str | None) -> None:
        if model is not None and model not in self._names:
            raise model_not_found(model, self._names)

    async def _respond(self, call: Call) -> None:
        fields = call.fields()
        stream = typed(fields, "stream", bool, "true or false")
        fields.pop("stream", None)  # there is nothing else over a WebSocket
        for name in ("type", "generate", "stream_id"):
            if name in fields:
                raise ClientError("unsupported_parameter", f"{name} belongs to the WebSocket", name)
        session = ResponsesSession(
            model=self._names[0],
            max_context=self._hub.port.info.max_context,
            wall_clock=time.time,
            clock=self._hub.port.now,
            aliases=self._names[1:],
            shelf=self._hub.responses.of(call.peer.name),
        )
        actions = session.receive(msgspec.json.encode({"type": "response.create", **fields}))
        if not actions:
            refused = msgspec.json.decode(session.pop() or b"")
            await answer(call.send, refused["status"], {"error": refused["error"]})
            return
        (action,) = actions
        assert isinstance(action, Generate)
        await self._run(call, action.stream, Exchange(session), Style(bool(stream), as_event))

    async def _tokenize(self, call: Call) -> None:
        prompt = call.fields("prompt", "model").get("prompt")
        if not isinstance(prompt, str):
            raise ClientError("invalid_request", "prompt must be a string", "prompt")
        token_ids = await asyncio.to_thread(self._tokens().encode, prompt)
        most = self._hub.port.info.max_context
        await answer(call.send, 200, {"count": len(token_ids), "max_model_len": most, "tokens": token_ids})

    async def _detokenize(self, call: Call) -> None:
        tokens, limit = call.fields("tokens", "model").get("tokens"), self._hub.port.info.vocab_size
        if not isinstance(tokens, list) or any(type(one) is not int or not 0 <= one < limit for one in tokens):
            raise ClientError("invalid_request", f"tokens must be a list of ids from 0 to {limit - 1}", "tokens")
        text = await asyncio.to_thread(self._tokens().decode, tuple(tokens))
        await answer(call.send, 200, {"prompt": text})

    async def _run(self, call: Call, source: Source, exchange: Exchange, style: Style) -> None:
        """Generate and write; a client that goes, or reads nothing for too long, ends the generation."""
        generation = Generation(self._hub, source, call.peer, exchange, call.received, len(call.body))
        generation.open()
        watch = asyncio.create_task(_until_gone(call.receive), name="http-watch")
        watch.add_done_callback(lambda _: generation.cancel("disconnect"))
        try:
            await self._write(call.send, source, exchange, style)
        except TimeoutError:
            self._hub.num_slow_closed += 1
            self._abort(call.client)
        finally:
            generation.cancel("disconnect")
            watch.cancel()

    async def _write(self, send: Send, source: Source, exchange: Exchange, style: Style) -> None:
        begun, last, deadline_s = False, b"{}", self._hub.server.write_deadline_s
        while True:
            exchange.wake.clear()
            while (frame := exchange.outbox.pop()) is not None:
                last = frame
                if not style.stream or (not begun and frame.startswith(REFUSED)):
                    continue
                if not begun:
                    begun = True
                    await send(start(200, EVENTS))
                async with asyncio.timeout(deadline_s):
                    await send({"type": "http.response.body", "body": style.wrap(frame), "more_body": True})
            if source.finish is not None or source.failure is not None:
                break
            await exchange.wake.wait()
        if begun:
            await send({"type": "http.response.body", "body": style.tail})
        elif source.failure is not None:
            await answer(send, source.failure.kind.status, style.refuse(source.failure))
        else:
            result = msgspec.json.decode(last)
            refused = result.get("type") == "error"
            body = {"error": result["error"]} if refused else result.get("response", result)
            await answer(send, result["status"] if refused else 200, body)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
