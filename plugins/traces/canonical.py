"""One schema for the traffic of every source: when requests arrive, how long they are, what they share, who sends them.

A trace holds counts and block ids, never text.  Prompt content is made from ``(seed, block id)``, so that equal ids
give equal tokens and a prefix cache finds exactly what the trace says is shared.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec
import numpy as np

from ...core.errors import ConfigError

#: Token ids below this are never made: end-of-sequence and friends live there.
FIRST_ID = 16
_TAPE = 1 << 16
_HEAD = 4  # ids that spell a block's hash; 4 digits in base ``vocab`` of at least 1,000 tell 10^12 blocks apart


class TraceRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request.  Times in seconds, lengths in tokens.

    ``prefix_blocks`` are ids of consecutive pieces of ``block_tokens`` tokens of the prompt (the last may be partial);
    what they do not cover is the request's own.  ``parent`` is the row number of the request that must have ended
    ``delay_s`` before this one arrives, ``after`` are further such rows (a join); ``arrival_s`` of such a row is
    only a recorded time.  ``slo`` names its class: limits and metrics are looked up by it.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    tenant: str = ""
    session: str = ""
    parent: int | None = None
    after: tuple[int, ...] = ()
    delay_s: float = 0.0
    slo: str = ""
    priority: int = 0

    @property
    def parents(self) -> tuple[int, ...]:
        """Numbers of all rows that must have ended before this one arrives."""
        return self.after if self.parent is None else (self.parent, *self.after)


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows come from: rows read = rows kept + rows dropped by reason.  ``sha256`` is of the file's bytes."""

    source: str
    sha256: str = ""
    rows_read: int = 0
    rows_kept: int = 0
    dropped: dict[str, int] = {}

    def __post_init__(self) -> None:
        if self.rows_read != self.rows_kept + sum(self.dropped.values()):
            raise ValueError(f"rows_read = {self.rows_read}: {self.rows_kept} kept and {self.dropped} dropped")


class Trace(msgspec.Struct, frozen=True):
    """Rows in order of arrival, parents before their children, and where they come from."""

    rows: tuple[TraceRow, ...]
    provenance: Provenance


def check_rows(rows: tuple[TraceRow, ...], where: str) -> None:
    """Raise ConfigError naming the first row that cannot be played, by number from 0."""
    for number, row in enumerate(rows):
        if row.input_tokens < 1 or row.output_tokens < 1:
            raise ConfigError(f"{where}: row {number}: {row.input_tokens} tokens in and {row.output_tokens} out")
        if not (0 <= row.arrival_s < float("inf") and 0 <= row.delay_s < float("inf")):
            raise ConfigError(f"{where}: row {number}: arrival_s = {row.arrival_s}, delay_s = {row.delay_s}")
        if any(not 0 <= parent < number for parent in row.parents):
            raise ConfigError(f"{where}: row {number}: its parents {row.parents} must be rows before it")
        if row.prefix_blocks and row.block_tokens < 1:
            raise ConfigError(f"{where}: row {number}: prefix_blocks without block_tokens")


# --- content ---------------------------------------------------------------------------------------------------------


def prompt_ids(row: TraceRow, seed: int, vocab: int, number: int = 0) -> tuple[int, ...]:
    """The prompt of ``row``, ``input_tokens`` ids in ``FIRST_ID``..``vocab - 1``.

    Blocks are made from ``(seed, block id)``; the rest from ``(seed, number)``, so ``number`` must tell the rows of a
    run apart.
    """
    length, made = row.input_tokens, list[int]()
    for block in row.prefix_blocks[: -(-length // row.block_tokens)] if row.block_tokens else ():
        made += _piece(seed, f"block {block}", row.block_tokens, vocab)
    del made[length:]
    rest = length - len(made)
    own = _fill(seed, f"request {number}", rest, vocab) if rest else ()
    return (*made, *own) if made else own


def own_ids(number: int, seed: int, count: int, vocab: int) -> tuple[int, ...]:
    """``count`` output ids that no other request of the run has."""
    return _fill(seed, f"answer {number}", count, vocab)


@lru_cache(maxsize=1 << 14)
def _piece(seed: int, what: str, count: int, vocab: int) -> tuple[int, ...]:
    return _fill(seed, what, count, vocab)


def _fill(seed: int, what: str, count: int, vocab: int) -> tuple[int, ...]:
    """A head that spells the hash of ``what``, then a stretch of one pseudo-random tape."""
    digest = int.from_bytes(hashlib.blake2b(f"{seed} {what}".encode(), digest_size=16).digest(), "big")
    head, base = [], vocab - FIRST_ID
    for _ in range(_HEAD):
        digest, digit = divmod(digest, base)
        head.append(FIRST_ID + digit)
    out, tape, at = tuple(head), _tape(seed, vocab), digest % (_TAPE // 2)
    while len(out) < count:
        out += tape[at : at + count - len(out)]
        at = 0
    return out[:count]


@lru_cache(maxsize=8)
def _tape(seed: int, vocab: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(FIRST_ID, vocab, _TAPE).tolist())


# --- files -----------------------------------------------------------------------------------------------------------


def encode(trace: Trace) -> bytes:
    """JSON lines: the provenance first, then one row each."""
    encoder = msgspec.json.Encoder()
    lines = [encoder.encode({"provenance": trace.provenance}), *map(encoder.encode, trace.rows)]
    return b"\n".join(lines) + b"\n"
