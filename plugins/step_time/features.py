"""What a step computes, in four numbers that its time depends on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...core.messages import Row


class Features(NamedTuple):
    """``prefill``: prompt tokens computed.  ``decode``: sequences that decode.  ``kv``: KV tokens that decoding reads
    (the sum of contexts).  ``attention``: sum over prefill chunks of chunk x (context before + chunk / 2)."""

    prefill: float
    decode: float
    kv: float
    attention: float


def features_of(rows: Iterable[Row], padding: Iterable[int] = ()) -> Features:
    """Features of a launch.  A row of one token that samples is a decode; dummy rows are prefill of their length."""
    prefill = decode = kv = 0
    attention = 0.0
    for row in rows:
        count, start = row.count, row.start
        if count == 1 and row.samples:
            decode += 1
            kv += start
        else:
            prefill += count
            attention += count * (start + count / 2)
    kv += decode  # each reads its own token too
    for count in padding:
        prefill += count
        attention += count * count / 2
    return Features(prefill, decode, kv, attention)
