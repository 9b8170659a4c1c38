"""S2, conversations of several turns: each prompt is the whole history, and people think between turns."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..traces.canonical import TraceRow
from .draws import Ids, Stream, generator, lognormal, lognormal_s, poisson
from .lengths import draw_length, longest
from .scenario import Guard, Scenario

TURNS, MOST_TURNS, THINK_S, LONGEST_THINK_S = 5.0, 20, 10.0, 60.0
NOMINAL_S = 0.03  # per output token, only to estimate how many histories are alive at once


def make(size: str, seed: int, num_requests: int = 0, rate_per_s: float = 1.0, kv_share: float = 0.3) -> Scenario:
    """``rate_per_s`` of session starts.  Turns geometric with mean 5, at most 20; user turn lognormal around 60
    tokens; answers as in ShareGPT; thinking lognormal around 10 s, at most 60."""
    scale, count = (1, num_requests or 1024) if size == "full" else (16, num_requests or 200)
    block, rng, ids = 16 if size == "full" else 4, generator(seed, "S2"), Ids()
    sessions: list[list[TraceRow]] = []
    starts = iter(poisson(rng, count, rate_per_s))
    while sum(map(len, sessions)) < count:
        left = count - sum(map(len, sessions))
        turns = min(MOST_TURNS, int(rng.geometric(1 / TURNS)), left)
        sessions.append([])
        text, history, at = Stream(ids, block), 0, next(starts)
        for turn in range(turns):
            history += lognormal(rng, 60 / scale, 1.0, 1, 2048 // scale)
            answer = draw_length(rng, "sharegpt", "output", scale)
            think = lognormal_s(rng, THINK_S, 1.0, LONGEST_THINK_S) if turn else 0.0
            row = TraceRow(
                arrival_s=at,
                input_tokens=history,
                output_tokens=answer,
                prefix_blocks=text.first(history),
                block_tokens=block,
                session=f"s{len(sessions) - 1}",
                delay_s=think,
                slo="later" if turn else "first",
            )
            sessions[-1].append(row)
            history += answer
            at += think + answer * NOMINAL_S
    rows = in_order(sessions)
    sizes = [row.input_tokens + row.output_tokens for row in rows]
    return Scenario(
        name="S2",
        title="Conversations of several turns",
        size=size,
        seed=seed,
        rows=rows,
        kv_tokens=max(round(kv_share * _live_tokens(sessions)), 2 * max(sizes)),
        max_output=longest("sharegpt", "output", scale),
        scheduler={"max_running": 64, "token_budget": 512 if size == "full" else 64},
        primary=("ttft_mean@later",),
        guards=(Guard(metric="ttft_mean@first"),),
        rate_per_s=rate_per_s,
        notes="Replaying the recorded times of turns lets turn k come before turn k - 1 has ended.",
    )


def in_order(sessions: Sequence[Sequence[TraceRow]]) -> tuple[TraceRow, ...]:
    """Rows of all sessions behind each other; each turn has the one before it as its parent."""
    rows: list[TraceRow] = []
    for session in sessions:
        for turn, row in enumerate(session):
            parent = len(rows) - 1 if turn else None
            rows.append(msgspec.structs.replace(row, parent=parent))
    return tuple(rows)


def _live_tokens(sessions: Sequence[Sequence[TraceRow]]) -> float:
    """Time-mean of the histories of sessions that have begun and not ended, at a nominal speed of decoding."""
    area, end = 0.0, 0.0
    for session in sessions:
        for row, following in zip(session, [*session[1:], None], strict=True):
            until = following.arrival_s if following else row.arrival_s + row.output_tokens * NOMINAL_S
            area += (row.input_tokens + row.output_tokens) * (until - row.arrival_s)
            end = max(end, until)
    return area / end if end else 0.0
