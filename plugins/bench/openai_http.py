"""An OpenAI-compatible server over HTTP as a target: ``POST /completions`` with a stream of events per request."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ...core.errors import ConfigError
from .arrivals import CANCEL, SLOW, Job
from .report import Seen
from .run import CANCEL_AFTER, SLOW_READ_S
from .sse import SseReader


class OpenAITarget:
    """A connection per request, as most clients behave; ``url`` ends before ``/completions``."""

    def __init__(self, url: str, model: str, key: str | None, fields: dict[str, Any]) -> None:
        """``fields`` are added to every request."""
        parts = urlsplit(url)
        self._secure, self._host = parts.scheme == "https", parts.hostname or ""
        self._port = parts.port or (443 if self._secure else 80)
        self._path = parts.path.rstrip("/") + "/completions"
        self._model, self._key, self._fields = model, key, fields

    async def open(self) -> None:
        try:
            _, writer = await self._connect()
        except OSError as error:
            raise ConfigError(f"--url: cannot connect to {self._host}:{self._port}: {error}") from error
        writer.close()

    async def run(self, number: int, job: Job, seen: Seen) -> None:
        now, num_events, parser = asyncio.get_running_loop().time, 0, SseReader()
        reader, writer = await self._connect()
        try:
            writer.write(self._request(job))
            counted = False
            while not parser.done and (data := await reader.read(65536)):
                for line in parser.feed(data):
                    if line == b"[DONE]":
                        continue
                    event = msgspec.json.decode(line)
                    if isinstance(event.get("error"), dict):
                        seen.error = str(event["error"].get("code") or "error")
                        return
                    choices = event.get("choices") or []
                    if choices and choices[0].get("text"):
                        seen.delta(now(), 1)  # servers send one token in an event, or one event in a while
                        num_events += 1
                    if choices and choices[0].get("finish_reason"):
                        seen.reason = choices[0]["finish_reason"]
                    if isinstance(event.get("usage"), dict):
                        counted, seen.num_tokens = True, event["usage"]["completion_tokens"]
                    if job.kind == CANCEL and num_events == CANCEL_AFTER:
                        return
                if job.kind == SLOW:
                    await asyncio.sleep(SLOW_READ_S)
            if parser.status != 200:
                seen.error = f"http_{parser.status}"
            elif not seen.reason and not counted:
                seen.error = "cut"
        finally:
            writer.close()

    async def close(self) -> None:
        """Nothing is kept."""

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context() if self._secure else None
        return await asyncio.open_connection(self._host, self._port, ssl=context)

    def _request(self, job: Job) -> bytes:
        body = msgspec.json.encode(
            {
                "model": self._model,
                "prompt": job.prompt,
                "max_tokens": job.max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._fields,
            }
        )
        head = [f"POST {self._path} HTTP/1.1", f"Host: {self._host}:{self._port}", "Content-Type: application/json"]
        head += [f"Content-Length: {len(body)}", "Accept: text/event-stream", "Connection: close"]
        if self._key:
            head.append(f"Authorization: Bearer {self._key}")
        return "\r\n".join([*head, "", ""]).encode() + body
