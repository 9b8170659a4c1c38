"""Log lines: one structlog set-up for the whole process, for people (console) or for machines (JSON).

What a client sends can never break, forge or overwrite a line: names that a client chose go through ``user_facts``,
every value is made printable on one line, and text of prompts and answers is left out unless ``log.prompts`` is set.
The id of a request is bound to the logger object (``for_request``), not to the thread or task, so no line can carry
the id of another request.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol, TextIO

import msgspec
import structlog

from .settings import LogConfig

#: Fields that hold what people wrote or what the model answered.
PRIVATE = frozenset({"content", "messages", "output_ids", "prompt", "prompt_ids", "text", "token_ids"})

#: Fields that the set-up writes itself; a caller's value moves to ``<name>_``.
_RESERVED = ("level", "timestamp", "source", "exception", "stack")
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_MAX_CHARS = 2000  # of one value; a line stays readable and below the size that collectors cut at (often 16 KiB)
_MAX_DEPTH = 4


class Logger(Protocol):
    """What the rest of the code uses: an event name and facts."""

    def debug(self, event: str, **facts: Any) -> Any: ...
    def info(self, event: str, **facts: Any) -> Any: ...
    def warning(self, event: str, **facts: Any) -> Any: ...
    def error(self, event: str, **facts: Any) -> Any: ...


def setup(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send all log lines of this process, also those of libraries, to ``stream`` (default: standard error)."""
    out = stream or sys.stderr
    renderer: structlog.typing.Processor
    if config.format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            _Clean(show_private=config.prompts),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _indent_exception,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.level]),
        logger_factory=lambda name="mainspring": _Lines(out, name),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    # Libraries write whole frames at debug level, and with them prompts.
    root.setLevel(_LEVELS[config.level] if config.prompts else max(_LEVELS[config.level], logging.INFO))


def get(name: str) -> Logger:
    """A logger whose lines carry ``source=name``."""
    return structlog.get_logger(name)  # type: ignore[no-any-return]


def for_request(name: str, rid: str) -> Logger:
    """A logger whose lines carry ``rid``; hand it to the tasks and threads that work on that request."""
    return structlog.get_logger(name, rid=rid)  # type: ignore[no-any-return]


def user_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts whose *names* a client chose, under names that can collide with nothing: ``event`` -> ``user.event``."""
    return {f"user.{name}": value for name, value in facts.items()}


class _Clean:
    """First processor: rename what collides, hide what is private, make every name and value printable."""

    def __init__(self, show_private: bool) -> None:
        self._show_private = show_private

    def __call__(self, logger: Any, _: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        exc_info = event.pop("exc_info", None)
        genuine = exc_info is True or isinstance(exc_info, BaseException | tuple)
        out: dict[str, Any] = {"source": logger.name}
        for name, value in event.items():
            safe = _printable(name)
            out[f"{safe}_" if safe in _RESERVED else safe] = self._value(safe, value, 0)
        if genuine:
            out["exc_info"] = exc_info
        elif exc_info:
            out["exc_info_"] = self._value("exc_info_", exc_info, 0)
        return out

    def _value(self, name: str, value: Any, depth: int) -> Any:
        if not self._show_private and name.removeprefix("user.") in PRIVATE:
            return _size(value)
        if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, msgspec.Struct):
            value = {"type": type(value).__name__} | {key: getattr(value, key) for key in value.__struct_fields__}
        if depth < _MAX_DEPTH and isinstance(value, Mapping):
            return {_printable(key): self._value(_printable(key), item, depth + 1) for key, item in value.items()}
        if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return [self._value("", item, depth + 1) for item in value]
        return _printable(value)


def _size(value: Any) -> str:
    try:
        return f"<{len(value)} hidden>"
    except Exception:  # noqa: BLE001 - any object may stand here, and a log line must not fail
        return "<hidden>"


def _printable(value: Any) -> str:
    """``value`` as text on one line, without control characters, of bounded length; never raises."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - a value that cannot be printed must not cost the line
        text = f"<unprintable {type(value).__name__}: {type(error).__name__}>"
    if len(text) > _MAX_CHARS:
        text = f"{text[:_MAX_CHARS]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _indent_exception(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A traceback has many lines; indented, none of them can pass for a log line of its own."""
    if "exception" in event:
        event["exception"] = "\n".join("    " + _printable(line) for line in event["exception"].split("\n"))
    return event


class _Lines:
    """Writes lines; a closed or full stream costs the line, never the request."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self.name = stream, name

    def msg(self, line: str) -> None:
        try:
            try:
                self._stream.write(line + "\n")
            except UnicodeEncodeError:
                self._stream.write(line.encode("ascii", "backslashreplace").decode("ascii") + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream is closed
            pass

    debug = info = warning = error = critical = exception = log = msg


class _Forward(logging.Handler):
    """Lines of libraries that use the standard ``logging`` module come out like our own."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's faulty format string is not worth a crash
            text = record.msg
        write = getattr(get(record.name), record.levelname.lower(), get(record.name).info)
        write(text, **({"exc_info": record.exc_info} if record.exc_info else {}))
