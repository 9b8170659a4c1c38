"""The native backend: the operators, and the whole step, in C++ with float32 activations between them.

Matrices are kept as float32, as bf16, or in groups of 32 inputs of 4 or 8 bits; blocks of a GGUF file go in as they
are.  Grouped ones meet activations of 16 bits (or of 8, where 4-bit weights and ``int8`` ask for it) with a scale for
every 32, multiplied in integers without rounding.  A row's result is the same to the bit whatever else is in the step,
however its prompt is cut, and with any number of threads.

Everything is checked, here or by ``batch.build``, before its address is handed over: a wrong argument is an exception,
never a crash.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...core.errors import EngineFault
from ...core.policy import SampleOutput
from ..models.blocks import Matrix, Stacked, parts_of
from ..models.rope import Rotary
from . import native_abi as abi
from .batch import Limits, StepBatch
from .dtypes import SCALE, lazy_zeros
from .native_batch import NativeBatch, check_batch, check_ids
from .native_draw import NativeDraw, prepare_draw
from .native_shortlist import NativeShortlist, order_of, probe, worth_it
from .native_weights import NativeMatrix, NativeTable, WeightRoom, pack_part
from .ops import HeadShape, KVShape
from .standard_plan import StandardPlan

KV_FORMATS = {
    torch.float32: abi.KV_F32,
    torch.float16: abi.KV_F16,
    torch.bfloat16: abi.KV_BF16,
    torch.int8: abi.KV_INT8,
}
_ROPE_STEP = 1024


class NativeOps:
    """Implements ``Ops`` in float32 activations; see there for each operator's contract.  One caller at a time, but for
    those who wait for a step."""

    dtype = torch.float32

    def __init__(
        self,
        heads: HeadShape,
        kv: KVShape,
        kv_dtype: torch.dtype = torch.float32,
        *,
        library: Any,
        threads: int = 1,
        weights: str = "fp32",
        int8_activations: bool = False,
    ) -> None:
        """``weights``: how matrices of numbers are kept, ``file`` or a key of ``FORMATS``; blocks stay as they are.
        Raises EngineFault where the system has no room for so many ``threads``."""
        self.heads, self.kv_shape, self.weights, self.int8 = heads, kv, weights, int8_activations
        self._library = library
        self._engine = library.ms_open(threads)
        if not self._engine:
            raise EngineFault(f"the native kernels cannot start {threads} threads (executor.threads)")
        padded = abi.padded_dim(library, kv.head_dim)
        pool = (kv.num_layers, kv.num_all_blocks, kv.num_kv_heads, kv.block_size, padded)
        self.keys, self.values = lazy_zeros(pool, kv_dtype), lazy_zeros(pool, kv_dtype)
        self.scales: tuple[torch.Tensor, ...] = ()  # of keys and of values, one for each head of each token
        if kv_dtype == torch.int8:
            self.scales = lazy_zeros(pool[:-1], SCALE), lazy_zeros(pool[:-1], SCALE)
        scales: list[int | None] = [part.data_ptr() for part in self.scales]
        self.kv = abi.KV(
            self.keys.data_ptr(), self.values.data_ptr(), *(scales or [None, None]), KV_FORMATS[kv_dtype],
            kv.num_all_blocks, kv.block_size, kv.num_kv_heads, kv.head_dim, padded,
        )  # fmt: skip
        self.rotary = Rotary(heads.rope, heads.head_dim)
        self._cos, self._sin = (np.empty((0, heads.head_dim // 2), np.float32) for _ in range(2))
        self._turns = [self._cos.ctypes.data, self._sin.ctypes.data]
        self._weight_bytes, self._room = 0, WeightRoom()
        self._used: deque[object] = deque(maxlen=8)  # by the newest steps; no more than 4 are under way

    def close(self) -> None:
        """End the threads when all steps are over; nothing may be called afterwards."""
        engine, self._engine = self._engine, None
        if engine:
            self._library.ms_close(engine)

    def __del__(self) -> None:
        if getattr(self, "_engine", None):
            self.close()

    # --- weights ---

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def table(self, weight: Matrix) -> NativeTable:
        made = NativeTable(weight)
        self._weight_bytes += made.nbytes
        return made

    def vector(self, weight: torch.Tensor) -> torch.Tensor:
        kept = weight.to(self.dtype).contiguous().clone()
        self._weight_bytes += kept.nbytes
        return kept

    def pack(self, weight: Matrix | Stacked, bias: torch.Tensor | None = None) -> NativeMatrix:
        segments: list[abi.Segment] = []
        kept: list[Any] = []
        first = 0
        offsets = None if bias is None else bias.to(self.dtype).contiguous().clone()
        for part in parts_of(weight):
            segment, data = pack_part(self._library, self._engine, self._room, part, self.weights, first)
            if offsets is not None:
                segment.bias = offsets.data_ptr() + 4 * first
            segments.append(segment)
            kept.append(data)
            first += part.shape[0]
        if offsets is not None:
            kept.append(offsets)
        made = NativeMatrix(segments, kept, self.int8)
        self._weight_bytes += made.nbytes
        return made

    def shortlist(self, model: abi.Model) -> NativeShortlist | None:
        """What finds greedy tokens of ``model`` sooner than its head, where that pays and can be.  Computes a step of
        some tokens.  Raises MemoryError where there is no room for it."""
        head = model.head.segments[0]
        plain = model.head.num_segments == 1 and not head.bias and not model.head.int8_activations
        if not plain or not worth_it(head.format, head.outputs, head.inputs):
            return None
        energies = np.empty(model.hidden)
        step = self.prepare(probe(model.vocab))
        if not self._library.ms_energies(self._engine, model, step.struct, energies.ctypes.data):
            raise MemoryError("no memory for a step of the network")
        made = NativeShortlist(self._library, self._engine, self._room, head, order_of(energies))
        self._weight_bytes += made.nbytes  # it is taken, whether of use or not
        return made if made.usable else None

    def shortlisted(self) -> tuple[int, int, int]:
        """Steps whose tokens a shortlist found, steps in which it was too long, and panels of 16 or 32 logits computed
        in the former."""
        counts = (ctypes.c_int64 * 3)()
        self._library.ms_shortlisted(self._engine, counts)
        return counts[0], counts[1], counts[2]

    # --- a step ---

    def prepare(self, batch: StepBatch) -> NativeBatch:
        rows, tokens = len(batch.context_lens), batch.num_tokens
        checked, below = batch.checked, 0
        kept: list[Any]
        if checked is not None and self._covers(checked.limits):
            below = checked.limits.vocab_size
            self._turn_up_to(checked.positions)
            begin, kept = checked.packed.buffer_info()[0], [checked.packed]
            addresses = [begin + 4 * cut for cut in checked.cuts]
        else:
            check_batch(batch, self.kv_shape)
            self._turn_up_to(int(batch.positions.max(initial=0)) + 1)
            kept = [np.ascontiguousarray(part, np.int32) for part in batch.arrays()]
            addresses = [part.ctypes.data for part in kept]
        kept += [self._cos, self._sin]
        addresses += self._turns
        sampling = len(batch.logits_rows)
        struct = abi.Batch(*addresses, tokens, rows, batch.block_tables.shape[1], sampling)
        return NativeBatch(struct, tuple(kept), batch.ids, tokens, batch.logits_rows if sampling else None, below)

    def _covers(self, limits: Limits) -> bool:
        """What is within ``limits`` is within this pool."""
        kv = self.kv_shape
        return limits.block_size == kv.block_size and limits.num_blocks <= kv.num_blocks

    def can_turn(self, positions: int) -> bool:
        """Whether cosines and sines for so many positions have been made."""
        return positions <= len(self._cos)

    def _turn_up_to(self, positions: int) -> None:
        """Cosines and sines for so many positions: made in steps that double, kept."""
        known = len(self._cos)
        if positions <= known:
            return
        wanted = max(positions, 2 * known, _ROPE_STEP)
        cos, sin = self.rotary.cos_sin(np.arange(known, wanted))
        self._cos = np.concatenate([self._cos, cos.numpy()])
        self._sin = np.concatenate([self._sin, sin.numpy()])
        self._turns = [self._cos.ctypes.data, self._sin.ctypes.data]

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        for source, target in copies:
            for pool in (self.keys, self.values, *self.scales):
                pool[:, target] = pool[:, source]

    # --- operators ---

    def embed(self, table: NativeTable, batch: NativeBatch) -> torch.Tensor:
        ids = np.ascontiguousarray(batch.ids, np.int32)
        check_ids(ids, table.rows)
        out = torch.empty(batch.num_tokens, table.struct.width)
        self._library.ms_embed(self._engine, table.struct, ids.ctypes.data, len(ids), out.data_ptr())
        return out

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._checked(x if residual is None else x + residual, len(weight))
        out = torch.empty_like(x)
        self._library.ms_rms_norm(
            self._engine, x.data_ptr(), weight.data_ptr(), len(x), len(weight), eps, out.data_ptr()
        )
        return out, x

    def linear(self, x: torch.Tensor, weight: NativeMatrix) -> torch.Tensor:
        x = self._checked(x, weight.inputs)
        out = torch.empty(len(x), weight.outputs)
        self._library.ms_linear(self._engine, weight.struct, x.data_ptr(), len(x), out.data_ptr())
        return out

    def norm_heads(self, qkv: torch.Tensor, query: torch.Tensor, key: torch.Tensor, eps: float) -> torch.Tensor:
        heads = self.heads
        qkv = self._checked(qkv, self._qkv_width())
        if query.shape != (heads.head_dim,) or key.shape != (heads.head_dim,):
            raise EngineFault(f"norms of heads of {heads.head_dim} have shapes {query.shape}, {key.shape}")
        self._library.ms_norm_heads(
            self._engine, qkv.data_ptr(), len(qkv), heads.num_heads, heads.num_kv_heads, heads.head_dim,
            query.data_ptr(), key.data_ptr(), eps,
        )  # fmt: skip
        return qkv

    def rope_and_write(self, qkv: torch.Tensor, layer: int, batch: NativeBatch) -> torch.Tensor:
        qkv = self._checked(qkv, self._qkv_width(), batch)
        self._check_layer(layer)
        heads = self.heads
        self._library.ms_rope_and_write(self._engine, qkv.data_ptr(), heads.num_heads, self.kv, layer, batch.struct)
        return qkv[:, : heads.num_heads * heads.head_dim].reshape(len(qkv), heads.num_heads, heads.head_dim)

    def attention(self, q: torch.Tensor, layer: int, batch: NativeBatch) -> torch.Tensor:
        width = self.heads.num_heads * self.heads.head_dim
        q = self._checked(q.reshape(len(q), -1), width, batch)
        self._check_layer(layer)
        out = torch.empty(len(q), width)
        self._library.ms_attention(
            self._engine, q.data_ptr(), self.heads.num_heads, self.kv, layer, self.heads.window(layer), batch.struct,
            out.data_ptr(),
        )  # fmt: skip
        return out

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        width = gate_up.shape[-1] // 2
        gate_up = self._checked(gate_up, 2 * width)
        out = torch.empty(len(gate_up), width)
        self._library.ms_silu_mul(self._engine, gate_up.data_ptr(), len(gate_up), width, out.data_ptr())
        return out

    def select(self, x: torch.Tensor, batch: NativeBatch) -> torch.Tensor:
        return x if batch.logits_rows is None else x.index_select(0, torch.from_numpy(batch.logits_rows))

    def logits(self, x: torch.Tensor, head: NativeMatrix) -> torch.Tensor:
        return self.linear(x, head)

    def step(self, model: abi.Model, batch: NativeBatch, draw: NativeDraw | None = None) -> torch.Tensor | None:
        """All layers in one call, then the ``draw``; ``model`` as ``native_step`` makes it.  The logits, float32
        ``[sampling, vocab]``, or None where no row has any or the draw is all that wants them."""
        return self.time_step(model, batch, draw)[0]

    def time_step(
        self, model: abi.Model, batch: NativeBatch, draw: NativeDraw | None
    ) -> tuple[torch.Tensor | None, tuple[float, float]]:
        """The same, with the moments (clock seconds) at which it began and ended.  Raises MemoryError."""
        out, moments = self._logits(model, batch, draw), (ctypes.c_double * 3)()
        self._library.ms_step(self._engine, model, batch.struct, address(out), draw and draw.struct, moments)
        return out, _span(moments)

    def begin(
        self,
        model: abi.Model,
        batch: NativeBatch,
        draw: NativeDraw | None,
        before: NativeDraw | None,
        takes: Sequence[tuple[int, int]],
    ) -> tuple[torch.Tensor | None, Callable[[], tuple[float, float]]]:
        """The same on the engine's own thread, behind the steps begun before: logits, and a wait for the step's end
        that returns its moments.  ``takes``: (token, row) of ids that the
        last of those steps draws by ``before``.  Until it is over nothing but ``begin`` may be called."""
        wanted = 0 if before is None else before.struct.num_rows
        if any(not (0 <= token < batch.num_tokens and 0 <= row < wanted) for token, row in takes):
            raise EngineFault(f"{list(takes)}: ids for {batch.num_tokens} tokens, drawn by {wanted} rows")
        out = self._logits(model, batch, draw)
        pairs, moments = (abi.Take * len(takes))(*[abi.Take(*pair) for pair in takes]), (ctypes.c_double * 3)()
        used = batch, draw, before, pairs, moments
        self._used.append(used)  # now: a signal may end this function as soon as the engine has the step
        count = self._library.ms_begin(
            self._engine, model, batch.struct, address(out), draw and draw.struct, moments,
            before and before.struct.ids, pairs, len(takes),
        )  # fmt: skip
        return out, partial(self._wait, count, moments, (out, used))

    def _logits(self, model: abi.Model, batch: NativeBatch, draw: NativeDraw | None) -> torch.Tensor | None:
        """Room for them where somebody wants them.  Raises EngineFault for ids or a ``draw`` that do not fit."""
        if not 0 < batch.ids_below <= model.vocab:
            check_ids(batch.ids, model.vocab)
        rows = 0 if batch.logits_rows is None else len(batch.logits_rows)
        if draw is None:
            return torch.empty(rows, model.vocab) if rows else None
        if (draw.struct.num_rows, draw.struct.vocab) != (rows, model.vocab):
            raise EngineFault(f"a draw of {draw.struct.num_rows} rows of {draw.struct.vocab}: {rows} of {model.vocab}")
        return None

    def _wait(self, count: int, moments: ctypes.Array[ctypes.c_double], kept: object) -> tuple[float, float]:
        """Until so many steps are over; ``kept`` is what the last of them uses."""
        if self._engine:  # else it has finished them all
            self._library.ms_wait(self._engine, count)
        return _span(moments)

    def finish(self) -> None:
        """Wait until every step that was begun is over."""
        if self._engine:
            self._library.ms_finish(self._engine)

    def draw(self, logits: torch.Tensor, plan: StandardPlan) -> SampleOutput:
        """One id for each row of float32 ``logits`` ``[rows, vocab]``, which may be overwritten: the standard
        sampler's, in a fraction of its time.  Raises EngineFault for a plan that does not fit the logits."""
        logits = self._checked(logits, logits.shape[-1])
        draw = prepare_draw(plan, *logits.shape)
        draw.struct.logits = logits.data_ptr()
        self._library.ms_draw(self._engine, draw.struct)
        return draw.read()

    def _qkv_width(self) -> int:
        return (self.heads.num_heads + 2 * self.heads.num_kv_heads) * self.heads.head_dim

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.kv_shape.num_layers:
            raise EngineFault(f"layer {layer} of {self.kv_shape.num_layers}")

    def _checked(self, x: torch.Tensor, width: int, batch: NativeBatch | None = None) -> torch.Tensor:
        """``x`` as rows of ``width`` floats, one for each token of ``batch``.  Raises EngineFault."""
        if x.ndim != 2 or x.shape[1] != width or x.dtype != self.dtype or x.device.type != "cpu":
            raise EngineFault(f"expected float32 rows of {width}, got {x.dtype} {list(x.shape)} on {x.device}")
        if batch is not None and len(x) != batch.num_tokens:
            raise EngineFault(f"{len(x)} rows for a step of {batch.num_tokens} tokens")
        return x.contiguous()


def _span(moments: ctypes.Array[ctypes.c_double]) -> tuple[float, float]:
    """Begin and end of a step."""
    if not moments[2]:
        raise MemoryError("no memory for the intermediate results of a step")
    return moments[0], moments[2]


def address(tensor: torch.Tensor | None) -> int | None:
    """Where its numbers lie."""
    return None if tensor is None else tensor.data_ptr()
