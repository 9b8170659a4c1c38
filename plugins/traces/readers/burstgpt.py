"""BurstGPT: production traffic of two models.  By column name, since the third release put two columns in between."""

from __future__ import annotations

from pathlib import Path

from ..canonical import Trace, TraceRow
from ..source import Collector, columns, number, read_bytes

WANTED = {
    "time": "Timestamp",
    "model": "Model",
    "input": "Request tokens",
    "output": "Response tokens",
    "log": "Log Type",
}


def read(path: Path, limit: int | None = None, model: str = "", log_type: str = "", session_column: str = "") -> Trace:
    """Rows of one ``model`` or ``log_type`` only, if given.  ``session_column`` is read where a release has one
    (``Session ID``).  Requests without an answer failed in the recording: they are dropped and counted."""
    data, sha256 = read_bytes(path)
    rows = Collector("burstgpt", path, sha256)
    wanted = {**WANTED, "session": session_column} if session_column else WANTED
    for line, cells in columns(path, data, wanted):
        if (model and cells["model"] != model) or (log_type and cells["log"] != log_type):
            rows.drop("another model or log type")
            continue
        rows.add(
            TraceRow(
                arrival_s=number(path, line, "Timestamp", cells["time"], float),
                input_tokens=number(path, line, "Request tokens", cells["input"]),
                output_tokens=number(path, line, "Response tokens", cells["output"]),
                tenant=cells["model"],
                session=cells.get("session", ""),
            )
        )
    return rows.finish(limit)
