"""Agentic coding sessions (kv-cache-tester): one object per session, each prompt a growing list of 64-token blocks.

Replayed as a closed loop: a request comes ``think_time`` after the answer before it, a sub-agent runs behind the
request that started it, and the session waits for it.  Sessions have no start time of their own: it is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from ..canonical import Trace, TraceRow
from ..source import Collector, json_lines, read_bytes

_SESSION_IDS = 1 << 32  # ids mean something inside one session only


class Request(msgspec.Struct, frozen=True):
    """A request, or (``type`` ``subagent``) a nested session."""

    type: str = "n"
    input: int = msgspec.field(name="in", default=0)
    out: int = 0
    hash_ids: tuple[int, ...] = ()
    think_time: float = 0.0
    requests: tuple[Request, ...] = ()


class Session(msgspec.Struct, frozen=True):
    """One line."""

    id: str
    block_size: int
    requests: tuple[Request, ...]
    tool_tokens: int = 0
    system_tokens: int = 0


class _Writer:
    """Rows of one session after another.  ``divide`` keeps every so many-th block and token."""

    def __init__(self, collector: Collector, think_cap_s: float, divide: int, shared: bool) -> None:
        self.rows: list[TraceRow] = []
        self._collector, self._cap, self._divide, self._shared = collector, think_cap_s, divide, shared
        self._number = 0

    def session(self, session: Session, at: float) -> None:
        """Its requests in order."""
        common = (session.tool_tokens + session.system_tokens) // session.block_size if self._shared else 0
        self._number += 1
        self._requests(session, session.requests, at, (), common)

    def _requests(
        self, session: Session, requests: Sequence[Request], at: float, parents: tuple[int, ...], common: int
    ) -> tuple[int, ...]:
        """Returns the rows that whoever comes next has to wait for."""
        for request in requests:
            if request.type == "subagent":
                parents += self._requests(session, request.requests, at, parents, 0)
                continue
            tokens, out = request.input // self._divide, max(1, request.out // self._divide)
            if tokens < 1:
                self._collector.drop("no prompt tokens")
                continue
            ids = [
                index if index < common else self._number * _SESSION_IDS + one
                for index, one in enumerate(request.hash_ids)
            ]
            self.rows.append(
                TraceRow(
                    arrival_s=at,
                    input_tokens=tokens,
                    output_tokens=out,
                    prefix_blocks=tuple(ids[:: self._divide][: tokens // session.block_size]),
                    block_tokens=session.block_size,
                    session=session.id,
                    parent=parents[0] if parents else None,
                    after=tuple(dict.fromkeys(parents[1:])),
                    delay_s=min(self._cap, max(0.0, request.think_time)) if parents else 0.0,
                )
            )
            parents = (len(self.rows) - 1,)
        return parents


def read(
    path: Path,
    limit: int | None = None,
    sessions_per_s: float = 0.1,
    seed: int = 0,
    think_cap_s: float = 60.0,
    divide: int = 1,
    shared_prefix: bool = True,
) -> Trace:
    """``limit``: so many sessions at most, starting as a Poisson process of ``sessions_per_s`` drawn from ``seed``.

    Think times have tails of hours: they are cut at ``think_cap_s``.  ``divide`` shrinks all lengths for a small
    model.  ``shared_prefix``: sessions share the blocks of tools and system prompt, which the ids do not say.
    """
    data, sha256 = read_bytes(path)
    collector, rng, at = Collector("weka", path, sha256), np.random.default_rng(seed), 0.0
    writer = _Writer(collector, think_cap_s, max(1, divide), shared_prefix)
    for count, (_, session) in enumerate(json_lines(path, data, Session)):
        if limit is not None and count >= limit:
            collector.drop("session beyond the limit", _num_requests(session.requests))
            continue
        writer.session(session, at)
        at += float(rng.exponential(1 / sessions_per_s))
    return collector.finish(None, writer.rows)


def _num_requests(requests: Sequence[Request]) -> int:
    return sum(_num_requests(one.requests) if one.type == "subagent" else 1 for one in requests)
