"""What every reader of traces shares: bytes from a file with its hash, columns by name, and counting of rows."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ...core.errors import ConfigError, nearest
from .canonical import Provenance, Trace, TraceRow, check_rows


def read_bytes(path: Path) -> tuple[bytes, str]:
    """Content, unpacked if the name ends in ``.gz``, and the SHA-256 of the file itself.  Raises ConfigError."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw), hashlib.sha256(raw).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: damaged: {error}") from error


def columns(path: Path, data: bytes, wanted: Mapping[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, wanted name -> cell) of a CSV with a header.  ``wanted`` maps our names to the file's column names.

    Raises ConfigError naming file, line and column for an unknown column or a short row.
    """
    try:
        rows = csv.reader(io.StringIO(data.decode("utf-8-sig")))
        header = [name.strip() for name in next(rows, [])]
        for name in wanted.values():
            if name not in header:
                raise ConfigError(f"{path}: line 1: there is no column {name!r}{nearest(name, header)}")
        places = {ours: header.index(name) for ours, name in wanted.items()}
        for cells in rows:
            if not cells:
                continue
            if len(cells) <= max(places.values()):
                raise ConfigError(f"{path}: line {rows.line_num}: {len(cells)} cells, expected {len(header)}")
            yield rows.line_num, {ours: cells[at].strip() for ours, at in places.items()}
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no CSV file: {error}") from error


def json_lines(path: Path, data: bytes, kind: type[Any]) -> Iterator[tuple[int, Any]]:
    """(line, object) of JSON lines decoded as ``kind``.  Raises ConfigError naming file, line and field."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield number, decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{path}: line {number}: {error}") from error


def number(path: Path, line: int, name: str, text: str, kind: Callable[[str], Any] = int) -> Any:
    """``text`` as a number.  Raises ConfigError naming file, line, column and value."""
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(f"{path}: line {line}: {name} = {text!r} is not a number") from error


class Collector:
    """Rows kept and dropped; ``finish`` puts them in order of arrival, the first at 0, and checks them."""

    def __init__(self, source: str, path: Path, sha256: str) -> None:
        self._source, self._path, self._sha256 = source, path, sha256
        self.rows: list[TraceRow] = []
        self._dropped: Counter[str] = Counter()

    def add(self, row: TraceRow) -> None:
        """Keep ``row``, or drop it with its reason if it has no tokens in or out."""
        if row.input_tokens < 1:
            self.drop("no prompt tokens")
        elif row.output_tokens < 1:
            self.drop("no output tokens")
        else:
            self.rows.append(row)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count rows that are not kept."""
        self._dropped[reason] += count

    def finish(self, limit: int | None = None, rows: Sequence[TraceRow] | None = None) -> Trace:
        """``limit``: keep so many only.  ``rows``: these instead of what was added, already in order."""
        kept = sorted(self.rows, key=lambda row: row.arrival_s) if rows is None else list(rows)
        if limit is not None and len(kept) > limit:
            self.drop("beyond the limit", len(kept) - limit)
            kept = kept[:limit]
        if not kept:
            raise ConfigError(f"{self._path}: has no requests ({dict(self._dropped) or 'it is empty'})")
        first = kept[0].arrival_s
        made = tuple(msgspec.structs.replace(row, arrival_s=row.arrival_s - first) for row in kept)
        check_rows(made, str(self._path))
        counts: dict[str, int] = {reason: count for reason, count in sorted(self._dropped.items()) if count}
        read = len(made) + sum(counts.values())
        return Trace(
            made,
            Provenance(
                source=f"{self._source}: {self._path.name}",
                sha256=self._sha256,
                rows_read=read,
                rows_kept=len(made),
                dropped=counts,
            ),
        )
