"""Index arrays of a step that launchers need, made on the host.

int32 NumPy arrays, to be brought to the device by the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


def choose_splits(num_blocks: int, longest: int, num_processors: int, min_split: int = 64, most: int = 32) -> int:
    """How many splits keep a device busy: two waves of blocks, no split shorter than ``min_split`` tokens.

    ``num_blocks``: rows times ``Attention.head_blocks``; ``longest``: tokens of the longest sequence.
    """
    wanted = -(-2 * num_processors // max(1, num_blocks))
    return max(1, min(wanted, most, longest // min_split))


def prefill_tiles(starts: Sequence[int], group: int, tile_rows: int, sequences: Sequence[int] | None = None) -> Ints:
    """Tiles of ``prefill``: int32 ``[tiles, 2]``, the last rows (which see the most) first.

    ``sequences``: only these; None: all.
    """
    chosen = range(len(starts) - 1) if sequences is None else sequences
    pairs = [
        (row, -first) for row in chosen for first in range(0, int(starts[row + 1] - starts[row]) * group, tile_rows)
    ]
    pairs.sort(key=lambda pair: pair[1])
    return np.array([(row, -first) for row, first in pairs], np.int32).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """``rows`` of a decode step whose sequences begin with the same ``tokens`` tokens, a multiple of 16, in the same
    blocks."""

    rows: Sequence[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixPlan:
    """What ``prefix`` and the ``decode`` behind it need; int32 arrays for the device.  ``num_slots``: of the prefix."""

    tiles: Ints
    members: Ints
    firsts: Ints
    prefix_parts: Ints
    num_slots: int


def prefix_tiles(
    shared: Sequence[SharedPrefix],
    entries: Sequence[tuple[int, int]],
    group: int,
    tile_rows: int,
    split: int = 1024,
) -> PrefixPlan:
    """Plan for prefixes that no row shares twice.  ``entries``: (sequence, token) of every decode row.  ``split``:
    tokens of the prefix one tile takes, a multiple of 16."""
    tiles: list[tuple[int, ...]] = []
    members: list[tuple[int, int]] = []
    firsts, parts = np.zeros(len(entries), np.int32), np.zeros(len(entries), np.int32)
    for one in shared:
        if one.tokens % 16 or firsts[list(one.rows)].any():
            raise ValueError(f"a shared prefix of {one.tokens} tokens, or a row in two of them: {one.rows}")
        begins = range(0, one.tokens, split)
        for slot, begin in enumerate(begins):
            for row in range(0, len(one.rows) * group, tile_rows):
                sequence = entries[one.rows[0]][0]
                end = min(begin + split, one.tokens)
                tiles.append((sequence, len(members), len(one.rows), row, begin, end, slot, 0))
        members += [(row, entries[row][1]) for row in one.rows]
        firsts[list(one.rows)], parts[list(one.rows)] = one.tokens, len(begins)
    return PrefixPlan(
        np.array(tiles, np.int32).reshape(-1, 8),
        np.array(members, np.int32).reshape(-1, 2),
        firsts,
        parts,
        int(parts.max(initial=0)),
    )


def waves(copies: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """``copies`` in as few launches as keep their order's meaning: within one, no target is another's source or
    target."""
    out: list[list[tuple[int, int]]] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for source, target in copies:
        if not out or source in targets or target in targets or target in sources:
            out.append([])
            sources, targets = set(), set()
        out[-1].append((source, target))
        sources.add(source)
        targets.add(target)
    return out
