"""A bounded log of every message, in memory and as JSON lines, from which one request's story is told.

Token ids and text stay out of the file unless asked for.  Writing happens on a thread of its own.  Files of earlier
processes stay for whoever asks later, the latest ``KEPT_FILES`` of them.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import structlog

from ..core.errors import ConfigError
from ..core.messages import Emit, Message, StepGrant, StepLaunch, StepPlan, StepResult, Stop, Submit, Wake

SCHEMA = 1
KEPT_FILES = 32
log = structlog.get_logger("mainspring.journal")
_encoder = msgspec.json.Encoder(enc_hook=repr)


def facts(message: Message, prompts: bool = False) -> dict[str, Any]:
    """What is written of a message: per-step messages name their rows by rid, without token ids."""
    match message:
        case Submit():
            out = {**msgspec.structs.asdict(message), "num_prompt_tokens": len(message.prompt_ids)}
            return out if prompts else {key: value for key, value in out.items() if key != "prompt_ids"}
        case StepPlan():
            rows = {row.rid: (row.start, row.count) for row in message.rows}
            started = {entry.rid: entry.num_cached_tokens for entry in message.started}
            rest = {key: getattr(message, key) for key in ("step", "released", "preempted", "padding")}
            return {**rest, "rows": rows, "started": started, "reasons": dict(message.reasons)}
        case StepGrant():
            return {
                "step": message.step,
                "rows": {row.rid: len(row.block_table) for row in message.rows},
                "denied": message.denied,
            }
        case StepLaunch():
            return {"step": message.step, "rows": {row.rid: row.samples for row in message.rows}}
        case StepResult():
            out = msgspec.structs.asdict(message)
            return out if prompts else {key: value for key, value in out.items() if key != "token_ids"}
        case Emit():
            return {"step": message.step, "rows": {row.rid: (len(row.token_ids), row.finish) for row in message.rows}}
        case Stop():
            return {"rows": {rid: rest for rid, *rest in message.rows}}
    return msgspec.structs.asdict(message)


def concerns(entry: dict[str, Any], rid: str) -> bool:
    """True if a journal entry says something about ``rid``."""
    groups = ("rows", "rids", "released", "preempted", "reasons", "denied")
    return entry.get("rid") == rid or any(rid in entry.get(group, ()) for group in groups)


class Journal:
    """Keeps the last ``size`` messages; with ``path`` also appends them to ``journal-<pid>.jsonl`` in that folder."""

    def __init__(self, size: int, path: Path | None = None, max_bytes: int = 64 * 2**20, prompts: bool = False) -> None:
        self.entries: deque[tuple[float, Message]] = deque(maxlen=size)
        self._prompts, self._max_bytes = prompts, max_bytes
        self._queue: queue.SimpleQueue[tuple[float, Message] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.num_lost = 0  # entries that could not be written
        if path is not None:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"journal.path: {path}: cannot be made: {error.strerror or error}") from error
            self._file = path / f"journal-{os.getpid()}.jsonl"
            self._thread = threading.Thread(target=self._write, name="mainspring-journal", daemon=True)
            self._thread.start()

    def record(self, message: Message, now: float) -> None:
        """The router's tap."""
        if not isinstance(message, Wake):
            self.entries.append((now, message))
            if self._thread is not None:
                self._queue.put((now, message))

    def story(self, rid: str) -> list[dict[str, Any]]:
        """What is still in memory about ``rid``, oldest first; each entry has ``t`` (seconds) and ``type``."""
        told = (_entry(now, message, self._prompts) for now, message in list(self.entries))
        return [entry for entry in told if concerns(entry, rid)]

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(5.0)

    def _write(self) -> None:
        """Whatever fails loses entries, never this thread: what is recorded would pile up for good."""
        out: IO[bytes] | None = None
        while (item := self._queue.get()) is not None:
            try:
                if out is None:  # not before there is something to write: a start that fails leaves no file
                    forget_old_files(self._file.parent)
                    out = self._file.open("ab")
                out.write(_encoder.encode(_entry(*item, self._prompts)) + b"\n")
                if self._queue.empty():
                    out.flush()
                if out.tell() > self._max_bytes // 2:  # the older half is kept beside the file
                    full, out = out, None
                    full.close()
                    self._file.replace(self._file.with_suffix(".old.jsonl"))
            except (OSError, ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
                if not self.num_lost:  # once: a full disk would say it for every message
                    log.warning("journal_entry_lost", file=str(self._file), reason=str(error))
                self.num_lost += 1
        if out is not None:
            with contextlib.suppress(OSError):
                out.close()


def _entry(now: float, message: Message, prompts: bool) -> dict[str, Any]:
    return {"v": SCHEMA, "t": now, "type": type(message).__name__, **facts(message, prompts)}


def forget_old_files(folder: Path) -> None:
    """Remove journals of processes that have ended, but for the latest ``KEPT_FILES``."""
    for file in _newest_first(folder)[KEPT_FILES:]:
        named = re.match(r"journal-(\d+)\.", file.name)
        if named and not Path(f"/proc/{named[1]}").exists():
            with contextlib.suppress(OSError):
                file.unlink()


def _newest_first(folder: Path) -> list[Path]:
    found: list[tuple[float, Path]] = []
    for file in folder.glob("journal-*.jsonl"):
        with contextlib.suppress(OSError):  # another process has just removed or renamed it
            found.append((file.stat().st_mtime, file))
    return [file for _, file in sorted(found, reverse=True)]


def read_story(folder: Path, rid: str) -> list[dict[str, Any]]:
    """The story of ``rid`` from the journal files in ``folder``, newest file first; empty if nobody knows it."""
    for file in _newest_first(folder):
        if story := [entry for entry in _lines(file) if concerns(entry, rid)]:
            return story
    return []


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for line in lines:
            try:
                entry = msgspec.json.decode(line)
            except ValueError:  # the line being written when the process ended, or the disk was full
                continue
            if isinstance(entry, dict):
                yield entry
