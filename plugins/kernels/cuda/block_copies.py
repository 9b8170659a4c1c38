"""Launchers of copies of whole blocks; conventions as in ``launch``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .launch import Array, MakeModule, address
from .source import unit


class BlockCopies:
    """Copies of whole blocks between pools: copy-on-write, and to and from memory of the host that the device can
    address."""

    UNITS = {16: "uint4", 4: "u32", 1: "u8"}

    def __init__(self, make: MakeModule, options: Sequence[str] = ()) -> None:
        names = {size: f"copy_blocks<{kind}>" for size, kind in self.UNITS.items()}
        module = make(code=unit("blocks.cu"), options=tuple(options), name_expressions=list(names.values()))
        self._functions = {size: module.get_function(name) for size, name in names.items()}

    def copy(
        self,
        source: Array,
        target: Array,
        pairs: Array,
        *,
        num_pairs: int,
        num_layers: int,
        block_bytes: int,
        source_blocks: int,
        target_blocks: int,
    ) -> None:
        """Copy block ``pairs[i, 0]`` of ``source`` to block ``pairs[i, 1]`` of ``target`` in every layer.

        Both are ``[num_layers, blocks, block_bytes]`` of anything; ``pairs`` int32 ``[num_pairs, 2]``, of which no
        target is another's source or target: see ``plan.waves``.
        """
        size = next(unit_bytes for unit_bytes in self.UNITS if block_bytes % unit_bytes == 0)
        if num_pairs and num_layers:
            units = block_bytes // size
            args = (
                address(source), address(target), address(pairs), np.int64(units), np.int64(units * source_blocks),
                np.int64(units * target_blocks),
            )  # fmt: skip
            self._functions[size]((min(16, -(-units // 256)), num_pairs, num_layers), (256,), args)
