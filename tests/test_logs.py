"""Log lines survive whatever a client sends (F-10) and carry the right request id (F-09)."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from mainspring.core.messages import Submit
from mainspring.plugins import logs
from mainspring.plugins.settings import LogConfig


class Unprintable:
    """Fails however it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def start(**options: Any) -> io.StringIO:
    stream = io.StringIO()
    logs.setup(LogConfig(**options), stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


HOSTILE = {
    "event": "forged",
    "level": "critical",
    "timestamp": 0,
    "filename": "../x",
    "msg": "m",
    "message": "mm",
    "exc_info": True,
    "stack_info": True,
    "source": "other",
    "rid": "not-mine",
    "self": 1,
    "exception": "e",
    "positional_args": (1,),
    "": "empty name",
    "line\nbreak": "a\r\nb\x1b[31m",
    "bad": Unprintable(),
}


@pytest.mark.parametrize("form", ["json", "console"])
def test_f10_names_of_a_client_never_break_a_line(form: str) -> None:
    stream = start(format=form)
    logs.for_request("gateway", "r1").info("accepted", **logs.user_facts(HOSTILE))
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b[31m" not in text
    assert "unprintable Unprintable" in text
    assert "a\\r\\nb" in text.replace("\\\\", "\\")


def test_f10_values_are_kept_under_safe_names_and_overwrite_nothing() -> None:
    stream = start(format="json")
    logs.for_request("gateway", "r1").info("accepted", **logs.user_facts(HOSTILE))
    (line,) = lines(stream)
    assert line["event"] == "accepted"
    assert line["level"] == "info"
    assert line["rid"] == "r1"
    assert line["source"] == "gateway"
    assert line["timestamp"] != 0
    for name in ("event", "level", "filename", "msg", "message", "exc_info", "source", "rid", "exception"):
        assert line[f"user.{name}"] == HOSTILE[name]


def test_f10_own_facts_with_reserved_names_move_aside() -> None:
    stream = start(format="json")
    logs.get("x").info("e", level="mine", timestamp="then", exc_info="just text")
    (line,) = lines(stream)
    assert (line["level"], line["level_"], line["timestamp_"]) == ("info", "mine", "then")
    assert line["exc_info_"] == "just text"


def test_f10_numbers_that_json_lacks_and_cycles_end_well() -> None:
    stream = start(format="json")
    cycle: list[Any] = []
    cycle.append(cycle)
    logs.get("x").info("e", nan=float("nan"), cycle=cycle, keys={1: "one", None: "none"}, surrogate="\ud800")
    (line,) = lines(stream)
    assert line["nan"] == "nan"
    assert line["keys"] == {"1": "one", "None": "none"}
    assert line["surrogate"] == "\\ud800"


def test_a_value_of_a_megabyte_is_cut() -> None:
    stream = start(format="json")
    logs.get("x").info("e", value="x" * 2**20)
    assert "1048576 characters" in stream.getvalue()
    assert len(stream.getvalue()) < 4000


def test_f10_a_traceback_cannot_forge_a_line() -> None:
    stream = start(format="console")
    try:
        raise ValueError("x\n2026-01-01 [error] forged \x1b[0m")
    except ValueError:
        logs.get("x").error("failed", exc_info=True)
    first, *rest = stream.getvalue().splitlines()
    assert "failed" in first
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("shown", [False, True])
def test_prompts_are_hidden_unless_asked_for(shown: bool) -> None:
    stream = start(format="json", prompts=shown)
    submit = Submit("r1", (17, 4711))
    logs.get("x").info("e", prompt="secret words", submit=submit, nested={"messages": ["secret words"]})
    logs.get("x").info("e", **logs.user_facts({"prompt": "secret words"}))
    text = stream.getvalue()
    assert ("secret words" in text) is shown
    assert ("4711" in text) is shown
    assert "r1" in text


def test_levels_filter() -> None:
    stream = start(level="warning", format="json")
    logs.get("x").info("no")
    logs.get("x").warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


def test_libraries_speak_through_the_same_set_up_and_never_at_debug() -> None:
    stream = start(level="debug", format="json")
    other = logging.getLogger("library.server")  # a name of its own: other tests may have switched real ones off
    other.debug("a frame with the prompt in it")
    other.warning("bad %s", "frame")
    other.info("%d", "not a number")
    assert [(line["source"], line["event"]) for line in lines(stream)] == [
        ("library.server", "bad frame"),
        ("library.server", "%d"),
    ]


def test_a_closed_stream_costs_the_line_only() -> None:
    stream = start()
    stream.close()
    logs.get("x").info("nobody reads this")


def test_a_stream_that_cannot_encode_gets_escapes() -> None:
    raw = io.BytesIO()
    logs.setup(LogConfig(), io.TextIOWrapper(raw, encoding="ascii"))
    logs.get("x").info("e", name="été")
    assert b"\\xe9t\\xe9" in raw.getvalue()


def test_f09_a_hundred_requests_in_tasks_and_threads_keep_their_ids() -> None:
    stream = start(format="json")

    def in_thread(log: logs.Logger, rid: str) -> None:
        log.info("thread", want=rid)

    async def work(rid: str) -> None:
        log = logs.for_request("worker", rid)
        log.info("task", want=rid)
        await asyncio.sleep(0)
        await asyncio.to_thread(in_thread, log, rid)
        thread = threading.Thread(target=in_thread, args=(log, rid))
        thread.start()
        thread.join()
        logs.get("worker").info("outside")

    async def main() -> None:
        await asyncio.gather(*(work(f"r{index}") for index in range(100)))

    asyncio.run(main())
    found = lines(stream)
    assert len(found) == 400
    for line in found:
        assert line.get("rid") == line.get("want")
