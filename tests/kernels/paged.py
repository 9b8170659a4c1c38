"""Paged test data and attention over it in float64.

Storage arrays are NumPy: float32, float16, bf16 as uint16 bits, int8 with float32 scales.  Blocks are shuffled, every
slot that no sequence owns holds NaN (int8: NaN scales), tables are padded with a block that lies far outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.plugins.kernels.cuda.launch import Pool
from mainspring.plugins.kernels.cuda.names import AttentionSpec
from mainspring.plugins.kernels.cuda.plan import SharedPrefix

Floats = NDArray[np.float64]
Stored = NDArray[Any]
#: Largest relative norm of the error by dtype of activations.
TOLERANCE = {"fp32": 1e-6, "fp16": 5e-4, "bf16": 5e-3}
POISON_INDEX = -(2**30)


def store(x: Any, dtype: str) -> Any:
    """Floats -> what memory holds, rounded to nearest even."""
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "fp32":
        return x
    if dtype == "fp16":
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(np.float16)
    bits = x.view(np.uint32)
    rounded = ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), rounded)


def load(stored: Stored, dtype: str) -> Floats:
    """What memory holds -> float64."""
    if dtype == "bf16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


def poisoned(shape: Sequence[int], dtype: str) -> Stored:
    """NaN everywhere; int8 codes of 127 (their scales are NaN)."""
    made: Stored = np.full(shape, 127, np.int8) if dtype == "int8" else store(np.full(shape, np.nan), dtype)
    return made


def quantise(heads: Floats) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """``[..., head_dim]`` -> codes and scales ``[...]``, the format of int8 pools."""
    exact = heads.astype(np.float32)
    scales = (np.abs(exact).max(-1) / np.float32(127)).astype(np.float32)
    codes = np.rint(exact / np.maximum(scales, np.finfo(np.float32).tiny)[..., None])
    return codes.astype(np.int8), scales


@dataclass
class Case:
    """A step: ``q`` ``[tokens, num_heads, head_dim]`` stored, keys and values of every token of every sequence as
    float64 of what is stored, and where they lie."""

    spec: AttentionSpec
    q: Stored
    k: Stored
    v: Stored
    slots: NDArray[np.int32]
    owners: NDArray[np.int32]
    pool: Pool
    tables: NDArray[np.int32]
    lengths: NDArray[np.int32]
    starts: NDArray[np.int32]

    @property
    def width(self) -> int:
        return int(self.tables.shape[1])

    def out(self) -> Stored:
        """A poisoned array for the result."""
        return poisoned(self.q.shape, self.spec.dtype)

    def keys_values(self) -> tuple[Floats, Floats]:
        """All tokens' keys and values as the pool keeps them, in order of ``slots``: float64."""
        if self.spec.kv_dtype != "int8":
            return load(store(load(self.k, self.spec.dtype), self.spec.kv_dtype), self.spec.kv_dtype), load(
                store(load(self.v, self.spec.dtype), self.spec.kv_dtype), self.spec.kv_dtype
            )
        made = [quantise(load(x, self.spec.dtype)) for x in (self.k, self.v)]
        keys, values = (codes.astype(np.float64) * scales.astype(np.float64)[..., None] for codes, scales in made)
        return keys, values

    def write(self) -> None:
        """Put keys and values into the pool, in Python."""
        block, place = self.slots // self.spec.block_size, self.slots % self.spec.block_size
        for pool, scales, x in (
            (self.pool.keys, self.pool.key_scales, self.k),
            (self.pool.values, self.pool.value_scales, self.v),
        ):
            exact = load(x, self.spec.dtype)
            if scales is None:
                pool[block, :, place] = store(exact, self.spec.kv_dtype)
            else:
                pool[block, :, place], scales[block, :, place] = quantise(exact)

    def attention(self, window: int = 0) -> Floats:
        """Causal attention of ``q``, float64; zeros for a sequence without tokens."""
        spec = self.spec
        q, (keys, values) = load(self.q, spec.dtype), self.keys_values()
        out = np.zeros(q.shape)
        for row, length in enumerate(self.lengths):
            first, after = int(self.starts[row]), int(self.starts[row + 1])
            if length == 0 or first == after:
                continue
            k, v = keys[self.owners == row], values[self.owners == row]
            at = np.arange(length - (after - first), length)[:, None]
            seen = np.arange(length)[None] <= at
            if window:
                seen &= np.arange(length)[None] > at - window
            for head in range(spec.num_heads):
                scores = q[first:after, head] @ k[:, head // spec.group].T * spec.softmax_scale
                if spec.softcap:
                    scores = spec.softcap * np.tanh(scores / spec.softcap)
                scores = np.where(seen, scores, -math.inf)
                weights = np.exp(scores - scores.max(1, keepdims=True))
                out[first:after, head] = weights / weights.sum(1, keepdims=True) @ v[:, head // spec.group]
        return out


def empty_pool(spec: AttentionSpec, num_blocks: int) -> Pool:
    """A pool of NaN."""
    shape = (num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
    scales = [np.full(shape[:3], np.nan, np.float32) for _ in range(2)] if spec.kv_dtype == "int8" else [None, None]
    return Pool(poisoned(shape, spec.kv_dtype), poisoned(shape, spec.kv_dtype), num_blocks, *scales)


def parts(pool: Pool) -> list[bytes]:
    """Every bit of it: keys, values and scales."""
    return [part.tobytes() for part in (pool.keys, pool.values, pool.key_scales, pool.value_scales) if part is not None]


def make(
    spec: AttentionSpec, lengths: Sequence[int], counts: Sequence[int], seed: int = 0, spread: float = 1.0
) -> Case:
    """Sequences of ``lengths`` tokens whose last ``counts`` are this step's; nothing is written yet.

    A length of 0 is a row of padding: its tokens are queries, and nowhere in the pool.
    """
    random = np.random.default_rng(seed)
    blocks = [-(-length // spec.block_size) for length in lengths]
    num_blocks = sum(blocks) + 3
    order = random.permutation(num_blocks).astype(np.int32)
    tables = np.full((len(lengths), max(blocks) + 1), POISON_INDEX, np.int32)
    slots, used = [], 0
    for row, (length, count) in enumerate(zip(lengths, blocks, strict=True)):
        tables[row, :count] = order[used : used + count]
        used += count
        at = np.arange(length)
        slots.append(tables[row, at // spec.block_size] * spec.block_size + at % spec.block_size)
    tokens, starts = sum(lengths), np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    kv = (2, tokens, spec.num_kv_heads, spec.head_dim)
    k, v = store(random.standard_normal(kv) * spread, spec.dtype)
    return Case(
        spec=spec,
        q=store(random.standard_normal((int(starts[-1]), spec.num_heads, spec.head_dim)) * spread, spec.dtype),
        k=np.ascontiguousarray(k),
        v=np.ascontiguousarray(v),
        slots=np.concatenate(slots).astype(np.int32),
        owners=np.repeat(np.arange(len(lengths)), lengths).astype(np.int32),
        pool=empty_pool(spec, num_blocks),
        tables=tables,
        lengths=np.asarray(lengths, np.int32),
        starts=starts,
    )


def written(
    spec: AttentionSpec, lengths: Sequence[int], counts: Sequence[int], seed: int = 0, spread: float = 1.0
) -> Case:
    """``make``, with keys and values in the pool."""
    case = make(spec, lengths, counts, seed, spread)
    case.write()
    return case


def share(case: Case, rows: Sequence[int], tokens: int) -> SharedPrefix:
    """Let ``rows`` begin with the blocks and the first ``tokens`` tokens of the first of them."""
    first, blocks = rows[0], tokens // case.spec.block_size
    for row in rows[1:]:
        case.tables[row, :blocks] = case.tables[first, :blocks]
        for part in (case.k, case.v, case.slots):
            part[np.flatnonzero(case.owners == row)[:tokens]] = part[np.flatnonzero(case.owners == first)[:tokens]]
    return SharedPrefix(rows, tokens)


def rms_normed(x: Floats, weight: Floats, eps: float) -> Floats:
    """``x`` over its root mean square along the last axis, times ``weight``."""
    normed: Floats = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return normed


def gated(x: Floats) -> Floats:
    """SiLU of the left half times the right one."""
    gate, up = np.split(x, 2, axis=-1)
    made: Floats = gate / (1 + np.exp(-gate)) * up
    return made


def rotated(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Heads ``[tokens, heads, head_dim]``, turned by angles ``[tokens, head_dim / 2]``."""
    low, high = np.split(x, 2, axis=-1)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    return np.concatenate([low * c - high * s, high * c + low * s], -1)


def error(made: Stored, dtype: str, expected: Floats) -> float:
    """Norm of the difference by the norm of what is expected; infinite if anything is not finite."""
    got = load(made, dtype)
    if not np.isfinite(got).all():
        return math.inf
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
