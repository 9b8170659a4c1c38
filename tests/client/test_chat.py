"""The terminal chat: what it prints, what it sends, what it remembers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mainspring.plugins.client.chat import run_chat

from ..gateways.fakes import PIECES, Served, serve


@contextlib.contextmanager
def served_on_a_thread(token_s: float = 0.001) -> Iterator[Served]:
    """A gateway on a loop of its own: the chat has one too."""
    started: list[Served] = []
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        async with serve(token_s=token_s) as served:
            started.append(served)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(60)
        yield started[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(60)
    assert not thread.is_alive()


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again; the server works on a thread of its own."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def chat(served: Served, lines: str, **options: object) -> tuple[int, str]:
    out = io.StringIO()
    return run_chat(served.url, options, io.StringIO(lines), out), out.getvalue()


def test_a_conversation_keeps_its_history() -> None:
    with served_on_a_thread() as served:
        code, shown = chat(served, "Hello\n\nAnd now?\n/reset\nAgain\n/exit\nnever\n", max_tokens=5, seed=7)
        answer = "".join(PIECES)
        assert code == 0
        assert shown.count(answer) == 3
        assert "tiny" in shown
        first, second, third = served.text.requests
        assert first.messages == ({"role": "user", "content": "Hello"},)
        assert second.messages == (
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "And now?"},
        )
        assert third.messages == ({"role": "user", "content": "Again"},)
        assert (first.temperature, first.top_p, first.max_tokens, first.seed) == (0.2, 0.9, 5, 7)


def test_defaults() -> None:
    with served_on_a_thread(token_s=0) as served:
        code, shown = chat(served, "Hello\n/what\n")
        assert code == 0
        assert "[length]" in shown
        assert "unknown command /what" in shown
        assert served.text.requests[0].max_tokens == 512


def test_a_refusal_is_shown_and_forgotten() -> None:
    with served_on_a_thread() as served:
        code, shown = chat(served, "Hello\n", temperature="hot")
        assert code == 1  # a script must notice
        assert "[invalid_request] temperature" in shown
        served.port.draining = True
        code, shown = chat(served, "Hello\n")
        assert code == 1
        assert "cannot connect" in shown


def test_no_server() -> None:
    out = io.StringIO()
    assert run_chat("ws://127.0.0.1:1", {}, io.StringIO("x\n"), out) == 1
    assert "cannot connect to ws://127.0.0.1:1/v1/stream" in out.getvalue()
    assert "make run" in out.getvalue()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://127.0.0.1:8000", "did you mean ws://127.0.0.1:8000/v1/stream?"),
        ("https://x/v1/stream", "did you mean wss://x/v1/stream?"),
        ("127.0.0.1:8000", "an address begins with ws:// or wss://"),
    ],
)
def test_an_address_of_another_kind(url: str, hint: str) -> None:
    out = io.StringIO()
    assert run_chat(url, {}, io.StringIO("x\n"), out) == 1
    assert hint in out.getvalue() and "make run" not in out.getvalue()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C does something, also where the tests themselves were started with SIGINT ignored (in the background)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_answer_and_not_the_chat() -> None:
    class Interrupting(io.StringIO):
        """Presses Ctrl-C when the first piece of an answer is shown."""

        pressed = False

        def write(self, text: str) -> int:
            if PIECES[0] in text and not self.pressed:
                self.pressed = True
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(text)

    out = Interrupting()
    with served_on_a_thread(token_s=0.005) as served:
        code = run_chat(served.url, {"max_tokens": 5000}, io.StringIO("Long\n/exit\n"), out)
        assert code == 0
        assert "[cancelled]" in out.getvalue()
        assert served.text.cancels == ["r0"]


def test_ctrl_c_at_the_prompt_gives_a_new_prompt() -> None:
    class Keyboard(io.StringIO):
        pressed = False

        def readline(self, *_: object) -> str:  # type: ignore[override]
            if not self.pressed:
                self.pressed = True
                raise KeyboardInterrupt
            return super().readline()

    out = io.StringIO()
    with served_on_a_thread() as served:
        assert run_chat(served.url, {"max_tokens": 1}, Keyboard("Hi\n"), out) == 0
        assert PIECES[0] in out.getvalue()


@pytest.mark.slow
def test_a_pause_between_turns_is_free() -> None:
    """B4: nothing is kept open while a person types."""

    class Typist(io.StringIO):
        def readline(self, *_: object) -> str:  # type: ignore[override]
            time.sleep(0.1)
            return super().readline()

    with served_on_a_thread() as served:
        assert run_chat(served.url, {"max_tokens": 1}, Typist("One\nTwo\n"), io.StringIO()) == 0
        assert len(served.text.requests) == 2
        wait_until(lambda: not served.gateway._connections)  # the server's end of the last closing handshake
