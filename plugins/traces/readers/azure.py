"""Azure LLM inference traces 2023 (code, conversation): arrivals and lengths of two production services."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from ....core.errors import ConfigError
from ..canonical import Trace, TraceRow
from ..source import Collector, columns, number, read_bytes

WANTED = {"time": "TIMESTAMP", "input": "ContextTokens", "output": "GeneratedTokens"}
EPOCH = datetime(2023, 1, 1)  # noqa: DTZ001 - only differences count; near, so that a float holds all digits


def read(path: Path, limit: int | None = None) -> Trace:
    """``limit``: so many rows at most.  Arrivals count from the first row."""
    data, sha256 = read_bytes(path)
    rows = Collector("azure", path, sha256)
    for line, cells in columns(path, data, WANTED):
        rows.add(
            TraceRow(
                arrival_s=_seconds(path, line, cells["time"]),
                input_tokens=number(path, line, "ContextTokens", cells["input"]),
                output_tokens=number(path, line, "GeneratedTokens", cells["output"]),
            )
        )
    return rows.finish(limit)


def _seconds(path: Path, line: int, text: str) -> float:
    """``2023-11-16 18:15:46.6805900``: seven digits of a second, one more than datetime reads."""
    stamp, _, fraction = text.partition(".")
    try:
        whole = (datetime.fromisoformat(stamp) - EPOCH).total_seconds()
        return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)
    except ValueError as error:
        raise ConfigError(f"{path}: line {line}: TIMESTAMP = {text!r} is not a date and time") from error
