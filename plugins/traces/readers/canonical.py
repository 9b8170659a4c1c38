"""Reads our own JSON lines: a provenance, then one row each (``canonical.encode`` and the recorder write them)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..canonical import Provenance, Trace, TraceRow
from ..source import Collector, json_lines, read_bytes


class _Line(TraceRow, frozen=True, kw_only=True):
    arrival_s: float = -1.0
    input_tokens: int = 0
    output_tokens: int = 0
    provenance: Provenance | None = None


def read(path: Path, limit: int | None = None) -> Trace:
    """``limit``: so many rows at most.  A file being written may end in half a line, which is dropped and counted.

    Rows without tokens are dropped too, but refused where rows name their parents by number.
    """
    data, sha256 = read_bytes(path)
    collector, rows = Collector("canonical", path, sha256), list[TraceRow]()
    body, newline, tail = data.rpartition(b"\n")
    if tail.strip():
        collector.drop("cut off line")
    for _, line in json_lines(path, body if newline else b"", _Line):
        if line.provenance is None:
            fields = {name: getattr(line, name) for name in TraceRow.__struct_fields__}
            rows.append(msgspec.convert(fields, TraceRow))
    if any(row.parents for row in rows):
        return collector.finish(limit, rows)
    for row in rows:
        collector.add(row)
    return collector.finish(limit)
