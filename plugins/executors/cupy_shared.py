"""Which rows of a step begin with the same blocks, so that attention can read those once for all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernels.cuda.plan import PrefixPlan, SharedPrefix, prefix_tiles
from .batch import Ints

#: Tokens of a beginning that is looked at.
LEAST_TOKENS = 256
#: Tokens that a step has to read less for a kernel of its own: some 16 MiB in each layer of Llama-3-8B, which take as
#: long as a launch.
LEAST_SAVED = 4096
#: Parts that a shared beginning is attended to in, at most: so many more results of each row are joined.
MOST_PARTS = 4


def find(tables: Ints, lengths: Ints, block_size: int) -> list[SharedPrefix]:
    """Groups of two rows and more whose sequences begin with the same ``LEAST_TOKENS`` tokens or more.

    ``tables`` ``[rows, width]``, ``lengths`` ``[rows]``.  A row is in one group at most, with all rows that have the
    same first block; a group shares what all of its rows do.
    """
    if len(lengths) < 2 or np.partition(lengths, -2)[-2] <= LEAST_TOKENS:
        return []
    found = []
    first, owner, sizes = np.unique(tables[:, 0], return_inverse=True, return_counts=True)
    for group in np.flatnonzero((sizes > 1) & (first >= 0)):
        rows: NDArray[np.intp] = np.flatnonzero((owner == group) & (lengths > LEAST_TOKENS))
        if len(rows) < 2:
            continue
        most = (int(lengths[rows].min()) - 1) // block_size  # whole blocks before any row's last token
        same = (tables[rows, :most] == tables[rows[0], :most]).all(0)
        blocks = most if same.all() else int(same.argmin())
        if (tokens := blocks * block_size // 16 * 16) >= LEAST_TOKENS:
            found.append(SharedPrefix(rows.tolist(), tokens))
    return found


def tokens_saved(shared: list[SharedPrefix]) -> int:
    """Tokens whose keys and values are not read again."""
    return sum((len(one.rows) - 1) * one.tokens for one in shared)


def plan(shared: list[SharedPrefix], entries: Ints, group: int, tile_rows: int) -> PrefixPlan:
    """Index arrays for the kernels.  ``entries`` ``[rows, 2]`` as in ``cupy_batch.DecodeRows``."""
    each = -(-max(one.tokens for one in shared) // MOST_PARTS)
    split = -(-max(each, LEAST_TOKENS) // 16) * 16
    return prefix_tiles(shared, [(int(a), int(b)) for a, b in entries], group, tile_rows, split)
