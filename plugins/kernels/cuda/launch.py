"""Launchers: arrays in, one kernel started, nothing allocated and nothing waited for.

They know no runtime.  A module is anything with the shape of CuPy's ``RawModule``: ``get_function(name)`` gives a
callable ``function(grid, block, args, shared_mem=bytes)``.  An array is anything with a ``data_ptr()`` (torch) or an
``ctypes.data`` (NumPy); it has to be contiguous and stay alive until the kernel is done.  Arguments are NumPy scalars
of exactly the parameter's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .names import AttentionSpec, attention_files, attention_instances
from .source import unit

Array = Any  # torch.Tensor, numpy.ndarray
LOG2_E = 1.4426950408889634


class Function(Protocol):
    """A kernel that can be started."""

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None: ...


class Module(Protocol):
    """Compiled kernels by the name they were asked for."""

    def get_function(self, name: str) -> Function: ...


#: ``make(code=text, options=(...), name_expressions=[...])``
MakeModule = Callable[..., Module]


def address(array: Array | None) -> np.uint64:
    """Where an array's first element lies; 0 for None."""
    if array is None:
        return np.uint64(0)
    if hasattr(array, "data_ptr"):
        return np.uint64(array.data_ptr())
    return np.uint64(array.ctypes.data)


@dataclass(frozen=True, slots=True)
class Pool:
    """Keys and values of one layer, ``[num_blocks, num_kv_heads, block_size, head_dim]`` in the pool's dtype; an int8
    pool has scales beside them, float32 ``[num_blocks, num_kv_heads, block_size]``."""

    keys: Array
    values: Array
    num_blocks: int
    key_scales: Array | None = None
    value_scales: Array | None = None

    def pointers(self) -> tuple[np.uint64, ...]:
        """keys, values, key scales, value scales as kernels take them."""
        return tuple(address(part) for part in (self.keys, self.values, self.key_scales, self.value_scales))


@dataclass(frozen=True, slots=True)
class Parts:
    """Room for unfinished results: ``out`` float32 ``[rows, num_heads, num_slots, head_dim]`` and ``ml`` float32
    ``[rows, num_heads, num_slots, 2]``, uninitialised.  The last slots belong to the splits of decode, those before
    to a shared prefix."""

    out: Array
    ml: Array
    num_slots: int


class Attention:
    """The kernels of one ``AttentionSpec``; see each method for its arrays.  ``T`` is the dtype of activations."""

    def __init__(self, make: MakeModule, spec: AttentionSpec, options: Sequence[str] = ()) -> None:
        self.spec = spec
        self.instances = attention_instances(spec)
        names = [instance.name for instance in self.instances.values()]
        module = make(code=unit(*attention_files(spec)), options=tuple(options), name_expressions=names)
        self._functions = {key: module.get_function(one.name) for key, one in self.instances.items()}
        scale = spec.softmax_scale
        self._in_scale = np.float32(scale / spec.softcap if spec.softcap else scale * LOG2_E)
        self._out_scale = np.float32(spec.softcap * LOG2_E)

    @property
    def head_blocks(self) -> int:
        """Blocks of decode for one row and one split."""
        return self.spec.num_kv_heads * -(-self.spec.group // self.instances["decode"].heads)

    @property
    def tile_rows(self) -> int:
        """(token, head) rows of a prefill tile, for ``plan.prefill_tiles``."""
        return self.instances["prefill"].rows

    def _start(self, key: str, grid: tuple[int, ...], args: tuple[Any, ...]) -> None:
        if all(grid):
            one = self.instances[key]
            self._functions[key](grid, (one.threads,), args, shared_mem=one.shared_bytes)

    def kv_write(self, k: Array, v: Array, slots: Array, pool: Pool, *, num_tokens: int, stride: int = 0) -> None:
        """Write keys and values ``[num_tokens, num_kv_heads, head_dim]`` of T to their slots.

        ``slots`` int32 ``[num_tokens]``: block * block_size + place; outside the pool: not written.  ``stride``:
        elements from one token to the next in ``k`` and ``v``, 0 where they are dense.
        """
        spec = self.spec
        keys, values, *scales = pool.pointers()
        args = (
            address(k), address(v), keys, values, *scales, address(slots), np.int32(spec.num_kv_heads),
            np.int64(stride or spec.num_kv_heads * spec.head_dim), np.int32(pool.num_blocks * spec.block_size),
        )  # fmt: skip
        self._start("kv_write", (num_tokens,), args)

    def rope_write(
        self, qkv: Array, cos: Array, sin: Array, positions: Array, slots: Array, pool: Pool, *, num_tokens: int
    ) -> None:
        """Rotate queries in place and write rotated keys, and values, to their slots.

        ``qkv`` T ``[num_tokens, num_heads + 2 * num_kv_heads, head_dim]``; its keys and values stay as they were.
        ``cos`` and ``sin`` float32 ``[num_positions, head_dim / 2]``; ``positions`` int32 ``[num_tokens]``: a token's
        row in them. ``slots`` as in ``kv_write``.
        """
        spec = self.spec
        args = (
            address(qkv), address(cos), address(sin), address(positions), address(slots), *pool.pointers(),
            np.int32(spec.num_heads), np.int32(spec.num_kv_heads), np.int64(self.qkv_stride),
            np.int32(pool.num_blocks * spec.block_size),
        )  # fmt: skip
        self._start("rope_write", (num_tokens,), args)

    @property
    def qkv_stride(self) -> int:
        """Elements of a token in ``qkv``: the ``q_stride`` of queries that stay where ``rope_write`` leaves them."""
        return (self.spec.num_heads + 2 * self.spec.num_kv_heads) * self.spec.head_dim

    def decode(
        self,
        out: Array,
        q: Array,
        pool: Pool,
        tables: Array,
        lengths: Array,
        *,
        num_rows: int,
        table_width: int,
        q_stride: int = 0,
        entries: Array | None = None,
        parts: Parts | None = None,
        num_splits: int = 1,
        min_split: int = 64,
        window: int = 0,
        firsts: Array | None = None,
        prefix_parts: Array | None = None,
    ) -> None:
        """Attention of one token a row over its sequence: ``out`` T ``[tokens, num_heads, head_dim]``.

        ``q`` T, ``q_stride`` elements from token to token, 0 where dense.  ``tables`` int32 ``[sequences,
        table_width]``, ``lengths`` int32 ``[sequences]``: tokens in the pool, this one included; 0: the result is
        zeros.  ``entries`` int32 ``[num_rows, 2]``: (sequence, token in q and out) of each row; None: row i is
        sequence i and token i. ``num_splits`` above 1, or a shared prefix, needs ``parts``, and a second kernel joins
        them; a split has at least ``min_split`` tokens, and lengths are read on the device only, so a captured launch
        serves all of them. ``window`` tokens, itself included, are seen; 0: all.  After ``prefix``: ``firsts`` int32
        ``[num_rows]``, tokens the prefix covered, and ``prefix_parts`` int32 ``[num_rows]``, how many parts it wrote.
        """
        spec = self.spec
        num_slots = parts.num_slots if parts else 1
        if num_splits > num_slots or (firsts is None) != (prefix_parts is None):
            raise ValueError(f"{num_splits} splits in {num_slots} parts, and a prefix needs firsts and prefix_parts")
        key = "decode_window" if window else "decode"
        grid = (spec.num_kv_heads * -(-spec.group // self.instances[key].heads), num_rows, num_splits)
        args = (
            address(out), address(parts and parts.out), address(parts and parts.ml), address(q), *pool.pointers(),
            address(tables), address(lengths), address(entries), address(firsts), np.int32(table_width),
            np.int32(spec.num_kv_heads), np.int32(spec.group), np.int64(q_stride or spec.num_heads * spec.head_dim),
            self._in_scale, self._out_scale, np.int32(window), np.int32(min_split), np.int32(num_slots - num_splits),
            np.int32(num_slots),
        )  # fmt: skip
        self._start(key, grid, args)
        if parts and num_slots > 1:
            joined = (
                address(out), address(parts.out), address(parts.ml), address(entries), address(prefix_parts),
                np.int32(num_slots - num_splits), np.int32(num_slots),
            )  # fmt: skip
            self._start("reduce", (spec.num_heads, num_rows), joined)

    def prefill(
        self,
        out: Array,
        q: Array,
        pool: Pool,
        tables: Array,
        lengths: Array,
        starts: Array,
        tiles: Array,
        *,
        num_tiles: int,
        table_width: int,
        q_stride: int = 0,
        window: int = 0,
    ) -> None:
        """Causal attention of the last tokens of sequences over all of them: ``out`` T ``[tokens, num_heads,
        head_dim]``.

        ``starts`` int32 ``[sequences + 1]``: where each sequence's tokens begin in ``q`` and ``out``; they are the
        last of its ``lengths`` tokens, already in the pool.  ``tiles`` int32 ``[num_tiles, 2]``: (sequence, first
        row), made by ``plan.prefill_tiles``.  The other arguments are those of ``decode``.
        """
        spec = self.spec
        args = (
            address(out), address(q), *pool.pointers(), address(tables), address(lengths), address(starts),
            address(tiles), np.int32(table_width), np.int32(spec.num_kv_heads), np.int32(spec.group),
            np.int64(q_stride or spec.num_heads * spec.head_dim), self._in_scale, self._out_scale, np.int32(window),
        )  # fmt: skip
        self._start("prefill_window" if window else "prefill", (num_tiles, spec.num_kv_heads), args)

    def prefix(
        self,
        parts: Parts,
        q: Array,
        pool: Pool,
        tables: Array,
        tiles: Array,
        members: Array,
        *,
        num_tiles: int,
        table_width: int,
        q_stride: int = 0,
    ) -> None:
        """Attention of decode rows that share a prefix over that prefix, read once; ``decode`` then does the rest.

        ``tiles`` int32 ``[num_tiles, 8]`` and ``members`` int32 ``[..., 2]`` are made by ``plan.prefix_tiles``.  Not
        for layers with a window.  Only where tensor cores run: ``"prefix" in instances``.
        """
        spec = self.spec
        args = (
            address(parts.out), address(parts.ml), address(q), *pool.pointers(), address(tables), address(tiles),
            address(members), np.int32(table_width), np.int32(spec.num_kv_heads), np.int32(spec.group),
            np.int64(q_stride or spec.num_heads * spec.head_dim), self._in_scale, self._out_scale,
            np.int32(parts.num_slots),
        )  # fmt: skip
        self._start("prefix", (num_tiles, spec.num_kv_heads), args)
