"""The text edge: every request's way in (text -> ids -> ``Submit``) and out (``Emit`` -> text -> its sink).

Encoding runs on threads: two for ordinary prompts, one for huge ones, so that a megabyte of text delays neither the
loop nor small prompts.  Emits are taken one batch per step in the edge's own task; all stop strings found in a batch
leave as one ``Stop``.  Nothing is kept of a request after its ``Ended``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterable

import anyio
import anyio.abc
import structlog

from ...core.edge import KernelPort
from ...core.errors import ClientError
from ...core.messages import (
    Cancel,
    Down,
    Emit,
    EmitRow,
    Failure,
    Finish,
    FinishReason,
    Message,
    Note,
    Pause,
    Resume,
    Stop,
    Timing,
    Usage,
)
from ..schema import GenerateRequest
from ..settings import Config
from .events import Accepted, Delta, Ended, TextEvent
from .live import Live, Sink
from .tokenizer import TextModel, load_text_model

log = structlog.get_logger("mainspring.text")
#: Prompts of more characters than this are encoded one at a time, beside the ordinary ones.
HUGE_CHARS = 64 * 1024
ORDINARY_THREADS = 2
POLL_S = 0.01


class TextEdge:
    """Use ``open``, ``cancel``, ``pause`` and ``resume`` from the event loop's thread, after ``start``."""

    name = "text"
    consumes: tuple[type[Message], ...] = (Emit, Down)

    def __init__(self, config: Config, model: TextModel | None = None) -> None:
        """``model`` None: the one ``config.model`` names, loaded by ``start``."""
        self._config, self._model = config, model
        self._live: dict[str, Live] = {}
        self._mailbox: deque[Emit] = deque()
        self._unencoded: deque[Live] = deque()  # opened while ``run`` is not running
        self._group: anyio.abc.TaskGroup | None = None
        self._port: KernelPort | None = None
        self._closed = self._down = False

    # --- for gateways and the library ------------------------------------------------------------------------------

    @property
    def model(self) -> TextModel:
        if self._model is None:
            raise RuntimeError("the text edge has not been started")
        return self._model

    @property
    def num_live(self) -> int:
        """Requests opened and not ended."""
        return len(self._live)

    def open(
        self,
        request: GenerateRequest,
        sink: Sink,
        *,
        tenant: str | None = None,
        received: float | None = None,
        parent: str | None = None,
        taken: bool = False,
    ) -> str:
        """Start a request and return its id at once; everything else, refusals too, arrives at ``sink`` later.

        ``sink`` is called on the event loop and must not block; if it raises, its request is cancelled.  ``tenant``
        overrides the request's own; ``received`` is the clock time at which the request came in (deadlines count
        from it), default now.  ``parent`` is the rid of a running request to fork: the new one goes on from its text.
        ``taken``: the caller had accepted it before the drain began that others are refused for.
        """
        rid = "r" + secrets.token_hex(6)
        while rid in self._live:
            rid = "r" + secrets.token_hex(6)
        now = self._kernel.now()
        live = Live(rid, request, sink, tenant or request.tenant, now if received is None else received, parent)
        self._live[rid] = live
        loop = asyncio.get_running_loop()
        if self._closed or (self._kernel.draining and not taken):
            loop.call_soon(self._fail, live, ClientError("draining", "the server is shutting down"))
            return rid
        if live.deadline is not None:
            live.timer = loop.call_later(max(0.0, live.deadline - now), self._expire, live)
        if parent is not None:
            self._kernel.post(live.submit(()))
        elif self._group is None:
            self._unencoded.append(live)
        else:
            self._group.start_soon(self._submit, live)
        return rid

    def cancel(self, rid: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End ``rid``; its ``Ended`` follows.  Unknown, ended and already stopped ids are ignored."""
        live = self._live.get(rid)
        if live is None or live.stopped:
            return
        if live.submitted:
            self._kernel.post(Cancel(rid, reason))
        elif self._forget(live):  # told later: the caller may be in the middle of its own tables
            ended = Ended(rid, "", (), self._finish(live, reason))
            asyncio.get_running_loop().call_soon(self._last_word, live, ended)

    def pause(self, rids: Iterable[str]) -> None:
        """Do not generate further tokens for these until ``resume``; ids without a live request are ignored."""
        self._hold(rids, True)

    def resume(self, rids: Iterable[str]) -> None:
        """Generate again."""
        self._hold(rids, False)

    # --- Edge ------------------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        if isinstance(message, Emit):
            self._mailbox.append(message)
        else:
            self._down = True  # its requests end by the Emit that follows; what that one forgets is ended here
        self._wake.set()

    async def start(self, port: KernelPort) -> None:
        """Load tokenizer and template on a thread; raises ConfigError for a model without a usable tokenizer."""
        self._port, self._wake, self._closed = port, asyncio.Event(), False
        self._vocab_size = port.info.vocab_size
        if self._model is None:
            self._model = await anyio.to_thread.run_sync(load_text_model, self._config.model)

    async def run(self, port: KernelPort) -> None:
        """Serve until cancelled; then every live request gets its end."""
        self._threads = anyio.CapacityLimiter(ORDINARY_THREADS + 1)
        self._ordinary, self._huge = anyio.CapacityLimiter(ORDINARY_THREADS), anyio.CapacityLimiter(1)
        failure = ClientError("draining", "the server is shutting down")
        try:
            async with anyio.create_task_group() as self._group:
                while self._unencoded:
                    self._group.start_soon(self._submit, self._unencoded.popleft())
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    self._drain()
        except Exception:
            failure = ClientError("server_error", "the text edge failed")
            raise
        finally:
            self._group, self._closed = None, failure.code == "draining"
            if self._closed:
                self._drain()
            left = list(self._live.values())
            for live in left:
                self._fail(live, failure)
            port.post(*(Cancel(live.rid) for live in left if live.submitted))

    async def encoded(self) -> None:
        """Return once every prompt that is open has been given to the kernel."""
        while any(not live.submitted for live in self._live.values()):  # noqa: ASYNC110 - or ends in other ways
            await anyio.sleep(POLL_S)

    async def flush(self) -> None:
        """Everything delivered so far has reached its sinks."""
        self._drain()

    # --- the way in ------------------------------------------------------------------------------------------------

    @property
    def _kernel(self) -> KernelPort:
        if self._port is None:
            raise RuntimeError("the text edge has not been started")
        return self._port

    async def _submit(self, live: Live) -> None:
        lane = self._huge if live.num_prompt_chars > HUGE_CHARS else self._ordinary
        port = self._kernel
        try:
            async with lane:
                if live.rid not in self._live:
                    return
                began = port.now()
                prompt_ids = await anyio.to_thread.run_sync(
                    self._prompt_ids, live.request, abandon_on_cancel=True, limiter=self._threads
                )
        except ClientError as error:
            self._fail(live, error)
        except Exception:
            log.exception("encoding_failed", rid=live.rid)
            self._fail(live, ClientError("server_error", "the prompt could not be encoded"))
        if live.rid not in self._live:
            return
        now = port.now()
        if live.deadline is not None and now >= live.deadline:
            self._end(live, "", (), self._finish(live, FinishReason.DEADLINE))
            return
        facts = {"chars": live.num_prompt_chars, "tokens": len(prompt_ids), "encode_s": now - began, "truncated": False}
        submit = live.submit(prompt_ids)
        port.post(Note(live.rid, "text_in", facts), submit, *((Pause((live.rid,)),) if live.paused else ()))

    def _prompt_ids(self, request: GenerateRequest) -> tuple[int, ...]:
        """On a thread: ids of the prompt, checked against the model's vocabulary.  Raises ClientError."""
        _check_ids("stop_token_ids", request.stop_token_ids, self._vocab_size)
        if request.token_ids is not None:
            name, token_ids = "token_ids", request.token_ids
        elif request.messages is not None:
            name, token_ids = "messages", self.model.chat(request.messages)
        else:
            name, token_ids = "prompt", self.model.encode(request.prompt or "")
        if not token_ids:
            raise ClientError("invalid_request", f"{name}: is no token at all for this model", name)
        _check_ids(name, token_ids, self._vocab_size)
        return token_ids

    def _hold(self, rids: Iterable[str], paused: bool) -> None:
        submitted = []
        for rid in rids:
            if (live := self._live.get(rid)) is not None:
                live.paused = paused
                if live.submitted:
                    submitted.append(rid)
        if submitted:
            self._kernel.post(Pause(tuple(submitted)) if paused else Resume(tuple(submitted)))

    def _expire(self, live: Live) -> None:
        assert live.deadline is not None
        if live.submitted:
            return
        if (left := live.deadline - self._kernel.now()) > 0:  # timers that count milliseconds fire early
            live.timer = asyncio.get_running_loop().call_later(max(left, 0.001), self._expire, live)
        else:
            self._end(live, "", (), self._finish(live, FinishReason.DEADLINE))

    # --- the way out -----------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        while self._mailbox:
            out: list[Message] = []
            stops: list[tuple[str, int, str]] = []
            for row in self._mailbox.popleft().rows:
                live = self._live.get(row.rid)
                if live is None:
                    continue
                try:
                    self._row(live, row, out, stops)
                except Exception:
                    log.exception("decoding_failed", rid=live.rid)
                    out.append(Cancel(live.rid))
                    self._fail(live, ClientError("server_error", "the output could not be decoded"))
            if stops:
                out.append(Stop(tuple(stops)))
            if out:
                self._kernel.post(*out)
        if self._down:
            self._down = False
            for live in [one for one in self._live.values() if one.submitted]:
                self._fail(live, ClientError("server_error", "the engine failed"))

    def _row(self, live: Live, row: EmitRow, out: list[Message], stops: list[tuple[str, int, str]]) -> None:
        if not live.accepted and (row.token_ids or row.finish is None):
            live.accepted = True
            self._tell(live, Accepted(live.rid, live.num_prompt_tokens))
        if live.text is None:
            live.text = live.make_stream(self.model.pieces)
        if row.finish is not None:
            text, token_ids, finish = live.text.end(row.token_ids, row.finish)
            self._count(live, text, out)
            facts = {"tokens": finish.usage.output, "chars": live.num_chars, "reason": finish.reason.value}
            out.append(Note(live.rid, "text_out", facts))
            self._end(live, text, live.pending_ids + token_ids, finish)
            return
        if live.stopped:
            return  # ids that were on their way when the stop string matched
        text, token_ids = live.text.push(row.token_ids)
        self._count(live, text, out)
        live.pending_ids += token_ids
        if live.text.matched is not None:
            stops.append((live.rid, live.text.num_tokens, live.text.matched))
        if text or (live.request.return_token_ids and live.pending_ids):
            token_ids, live.pending_ids = live.pending_ids, ()
            self._tell(live, Delta(live.rid, text, token_ids))

    @staticmethod
    def _count(live: Live, text: str, out: list[Message]) -> None:
        if text and not live.num_chars:
            out.append(Note(live.rid, "text_out", {"first_text_after": live.num_output_tokens}))
        live.num_chars += len(text)

    def _tell(self, live: Live, event: TextEvent) -> None:
        """Call the sink; one that raises loses its request and disturbs nobody else."""
        if live.rid not in self._live:
            return
        try:
            live.sink(event)
        except Exception:
            log.exception("sink_failed", rid=live.rid)
            self._forget(live)
            self._kernel.post(Cancel(live.rid))

    def _end(self, live: Live, text: str, token_ids: tuple[int, ...], finish: Finish) -> None:
        """Forget the request and tell its sink ``Ended``; does nothing if that has happened."""
        if self._forget(live):
            self._last_word(live, Ended(live.rid, text, token_ids, finish))

    def _forget(self, live: Live) -> bool:
        if live.timer is not None:
            live.timer.cancel()
        return self._live.pop(live.rid, None) is not None

    @staticmethod
    def _last_word(live: Live, ended: Ended) -> None:
        try:
            live.sink(ended)
        except Exception:
            log.exception("sink_failed", rid=live.rid)

    def _fail(self, live: Live, error: ClientError) -> None:
        failure = Failure(error.code, error.message, error.param)
        self._end(live, "", live.pending_ids, self._finish(live, FinishReason.ERROR, failure))

    def _finish(self, live: Live, reason: FinishReason, failure: Failure | None = None) -> Finish:
        """An end that the text edge decides itself, with the tokens counted so far."""
        usage = Usage(live.num_prompt_tokens, 0, live.num_output_tokens)
        return Finish(reason, usage, Timing(live.received, finished=self._kernel.now()), failure=failure)


def _check_ids(name: str, token_ids: tuple[int, ...], limit: int) -> None:
    if token_ids and max(token_ids) >= limit:
        position = next(index for index, token_id in enumerate(token_ids) if token_id >= limit)
        message = f"{name}[{position}] = {token_ids[position]}: the vocabulary has ids 0 to {limit - 1}"
        raise ClientError("invalid_request", message, f"{name}[{position}]")
