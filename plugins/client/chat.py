"""Talk to a served model in a terminal.

A connection is opened for each turn: while a person reads and types nothing has to be kept alive, and a server that
was restarted in between is not noticed.  The history lives here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from ..wire.llm_v1_frames import DeltaFrame
from .client import LLMClient, ServerError, connect

DEFAULTS: dict[str, Any] = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 512}
PROMPT = "> "
HELP = "/reset starts over, /exit leaves, Ctrl-C stops an answer"


def run_chat(url: str, options: Mapping[str, Any], stdin: TextIO, stdout: TextIO) -> int:
    """Chat until /exit or the end of input.

    Returns the exit code: 0; 1 if there is no server, or a question that came through a pipe got no answer; 130 if
    interrupted.

    ``options`` are fields of a ``generate`` frame; they win over ``DEFAULTS``.  Ctrl-C ends a running answer, pressed
    again at once the chat.
    """
    chat = _Chat(url, {**DEFAULTS, **options}, stdin, stdout)
    with asyncio.Runner() as runner:
        try:
            model = runner.run(chat.greet())
        except ServerError as error:
            chat.say(f"{error.message}\n")
            if error.code == "connection_lost" and error.status is None:
                chat.say("Start a server with `make run` or `mainspring serve`, or name another with --url.\n")
            return 1
        chat.say(f"{model} at {url}. {HELP}\n")
        while True:
            try:
                line = chat.ask()
            except KeyboardInterrupt:
                chat.say("\n")
                continue
            if line is None:
                return 1 if chat.num_failed and not chat.interactive else 0
            if line == "/reset":
                chat.history.clear()
            elif line.startswith("/"):
                chat.say(f"unknown command {line.split()[0]}; {HELP}\n")
            elif line:
                try:
                    runner.run(chat.turn(line))
                except KeyboardInterrupt:
                    chat.say("\n")
                    return 130


class _Chat:
    def __init__(self, url: str, fields: dict[str, Any], stdin: TextIO, stdout: TextIO) -> None:
        self._url, self._fields, self._stdin, self._stdout = url, fields, stdin, stdout
        self.history: list[dict[str, str]] = []
        self.num_failed = 0  # questions without an answer
        self.interactive = stdin is sys.stdin and stdin.isatty()

    def say(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()

    def ask(self) -> str | None:
        """The next line without its end; None to leave."""
        if self.interactive:
            try:
                line = input(PROMPT)  # with the terminal's line editing
            except EOFError:
                self.say("\n")
                return None
        else:
            self.say(PROMPT)
            line = self._stdin.readline()
            if not line:
                self.say("\n")
                return None
        line = line.strip()
        return None if line == "/exit" else line

    async def greet(self) -> str:
        """The served model's name."""
        async with connect(self._url) as client:
            return ", ".join(client.hello.models)

    async def turn(self, line: str) -> None:
        """One question and its answer.  What failed leaves no trace in the history; what was cut short stays."""
        self.history.append({"role": "user", "content": line})
        try:
            async with connect(self._url) as client:
                answer = await self._answer(client)
        except ServerError as error:
            self.history.pop()
            self.num_failed += 1
            self.say(f"\n[{error.code}] {error.message}\n")
        else:
            self.history.append({"role": "assistant", "content": answer})

    async def _answer(self, client: LLMClient) -> str:
        parts: list[str] = []
        generation = client.generate(messages=self.history, **self._fields)
        while True:
            try:
                async for event in generation:
                    if isinstance(event, DeltaFrame):
                        parts.append(event.text)
                        self.say(event.text)
                break
            except asyncio.CancelledError:  # Ctrl-C: stop the answer, not the chat
                task = asyncio.current_task()
                assert task is not None
                task.uncancel()
                await generation.cancel()
        reason = generation.done.reason if generation.done else ""
        self.say("\n" if reason == "stop" else f"\n[{reason}]\n")
        return "".join(parts)
