"""A server logs its own traffic as a canonical trace, to ask later what another policy would have done with it.

Lengths, arrivals, classes and hashes of prompt prefixes; no text, no ids, no names.  Hashes are keyed with a secret
that is made at the start and never written: equal hashes in one file mean equal prefixes, and say nothing else.
"""

from __future__ import annotations

import hashlib
import os
import queue
import secrets
import threading
from array import array
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog

from ...core.errors import ConfigError
from ...core.messages import Emit, Message, Submit
from .canonical import Provenance, TraceRow

BLOCK_TOKENS = 16
MOST_PENDING = 100_000  # requests that have not ended; more are not recorded
log = structlog.get_logger("mainspring.trace")


class TraceRecorder:
    """The router's tap.  Writes ``trace-<pid>.jsonl`` in ``folder`` on a thread of its own, a row when it ends.

    Never over an earlier trace: a later process of the same number (in a container) writes ``trace-<pid>-1.jsonl``.
    ``salt`` is for tests.  Raises ConfigError if the folder cannot be made.
    """

    def __init__(self, folder: Path, salt: bytes | None = None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"journal.trace: {folder}: cannot be made: {error.strerror or error}") from error
        self.file = folder / f"trace-{os.getpid()}.jsonl"
        self.num_lost = 0
        self._salt = secrets.token_bytes(16) if salt is None else salt
        self._pending: dict[str, tuple[Submit, float]] = {}
        self._start: float | None = None
        self._queue: queue.SimpleQueue[tuple[Submit, float, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="mainspring-trace", daemon=True)
        self._thread.start()

    def record(self, message: Message, now: float) -> None:
        """Notes arrivals, and hands a request over to the writer when it has ended."""
        if isinstance(message, Submit):
            if len(self._pending) < MOST_PENDING:
                at = now if message.received is None else message.received
                self._start = at if self._start is None else self._start
                self._pending.setdefault(message.rid, (message, max(0.0, at - self._start)))
        elif isinstance(message, Emit):
            for row in message.rows:
                known = self._pending.pop(row.rid, None) if row.finish is not None else None
                if row.finish is not None and known is not None and row.finish.usage.output:
                    self._queue.put((*known, row.finish.usage.output))

    def close(self) -> None:
        """Write what is queued; requests that have not ended are left out."""
        self._queue.put(None)
        self._thread.join(5.0)

    def _write(self) -> None:
        encoder = msgspec.json.Encoder()
        try:
            with self._create() as out:
                out.write(encoder.encode({"provenance": Provenance(source="recorder")}) + b"\n")
                while (item := self._queue.get()) is not None:
                    out.write(encoder.encode(self._row(*item)) + b"\n")
                    if self._queue.empty():
                        out.flush()
        except OSError as error:
            log.warning("trace_lost", file=str(self.file), reason=str(error))
            self.num_lost += 1
            while self._queue.get() is not None:
                self.num_lost += 1

    def _create(self) -> BinaryIO:
        """The first file that is not there yet."""
        number = 0
        while True:
            try:
                return self.file.open("xb")
            except FileExistsError:
                number += 1
                self.file = self.file.with_name(f"trace-{os.getpid()}-{number}.jsonl")

    def _row(self, submit: Submit, at: float, output_tokens: int) -> TraceRow:
        return TraceRow(
            arrival_s=round(at, 6),
            input_tokens=len(submit.prompt_ids),
            output_tokens=output_tokens,
            prefix_blocks=self._hashes(submit),
            block_tokens=BLOCK_TOKENS,
            tenant=self._hash(submit.tenant.encode()).hex() if submit.tenant != "default" else "",
            priority=submit.priority,
        )

    def _hash(self, data: bytes, size: int = 6) -> bytes:
        return hashlib.blake2b(data, key=self._salt, digest_size=size).digest()

    def _hashes(self, submit: Submit) -> tuple[int, ...]:
        """One number for each whole block, each of the prefix up to its end, by ``cache_salt`` too."""
        ids, chain, out = array("q", submit.prompt_ids), submit.cache_salt.encode(), list[int]()
        for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            chain = self._hash(chain + ids[start : start + BLOCK_TOKENS].tobytes(), 16)
            out.append(int.from_bytes(chain[:6], "big"))
        return tuple(out)
