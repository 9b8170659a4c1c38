"""The KV pool of a device, and the blocks behind it in the host's memory where preempted requests wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..kernels.cuda.block_copies import BlockCopies
from ..kernels.cuda.launch import Pool as LayerPool
from ..kernels.cuda.plan import waves
from .cupy_buffers import Staging
from .cupy_device import Device
from .dtypes import SCALE
from .ops import KVShape


class Pool:
    """Keys and values ``[layers, blocks, kv_heads, block_size, head_dim]``, and an int8 pool's scales
    ``[layers, blocks, kv_heads, block_size]``; the same again for blocks of the host.  Memory is taken once."""

    def __init__(self, kv: KVShape, dtype: torch.dtype, device: Device) -> None:
        self.kv = kv
        self._copies, self._staging = BlockCopies(device.raw_module), Staging(device)

        def take(zeros: Callable[..., torch.Tensor], num_blocks: int) -> tuple[torch.Tensor, ...]:
            shape = (kv.num_layers, num_blocks, kv.num_kv_heads, kv.block_size)
            codes = [zeros((*shape, kv.head_dim), dtype) for _ in "kv"]
            return (*codes, *(zeros(shape, SCALE) for _ in "kv")) if dtype == torch.int8 else tuple(codes)

        def on_device(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device.device)

        self.parts = take(on_device, kv.num_blocks)
        self.host_parts = take(device.host_memory, kv.num_host_blocks) if kv.num_host_blocks else ()
        self._layers = [self._layer(index) for index in range(kv.num_layers)]

    def _layer(self, index: int) -> LayerPool:
        keys, values, *scales = (part[index] for part in self.parts)
        return LayerPool(keys, values, self.kv.num_blocks, *scales)

    def layer(self, index: int) -> LayerPool:
        """What kernels get of one layer."""
        return self._layers[index]

    def copy(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Copy whole blocks ``(source, target)`` in every layer, as if one after the other; numbers from ``num_blocks``
        on are the host's."""
        count = self.kv.num_blocks
        sides = [self.parts, self.host_parts]
        self._staging.reserve(2 * len(copies), len(copies))
        groups = []
        for wave in waves(copies):
            by_sides: dict[tuple[bool, bool], list[tuple[int, int]]] = {}
            for source, target in wave:
                pair = source - count * (source >= count), target - count * (target >= count)
                by_sides.setdefault((source >= count, target >= count), []).append(pair)
            groups += list(by_sides.items())
        places = self._staging.upload([np.array(pairs, np.int32) for _, pairs in groups])
        for ((source, target), pairs), place in zip(groups, places, strict=True):
            for here, there in zip(sides[source], sides[target], strict=True):
                self._copies.copy(
                    here,
                    there,
                    place,
                    num_pairs=len(pairs),
                    num_layers=self.kv.num_layers,
                    block_bytes=here[0, 0].nbytes,
                    source_blocks=here.shape[1],
                    target_blocks=there.shape[1],
                )
