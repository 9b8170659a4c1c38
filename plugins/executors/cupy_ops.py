"""The backend of graphics processors: torch multiplies matrices and owns all memory, own kernels do the rest.

Everything paged and every small fused operator is a kernel of ``plugins/kernels/cuda``, compiled for this model's
shapes and launched on torch's current stream with the addresses of torch's tensors.  The pool is head-major per layer,
``[blocks, kv_heads, block_size, head_dim]``, keys and values apart, with scales ``[blocks, kv_heads, block_size]``
beside int8; blocks of the host lie in memory that both sides see.

Results lie in buffers that are taken once (``cupy_buffers``), so a step allocates nothing, and one of the same shape
finds everything at the same addresses.  Therefore the result of an operator is good until the next call of that
operator with the same width; ``models.llama`` asks for no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..kernels.cuda.launch import Attention
from ..kernels.cuda.launch import Pool as LayerPool
from ..kernels.cuda.names import AttentionSpec
from ..kernels.cuda.row_ops import RowOps
from ..models.rope import Rotary
from .batch import StepBatch
from .cupy_batch import CupyBatch, DecodeRows, Layout
from .cupy_buffers import Buffers
from .cupy_device import Device
from .cupy_pool import Pool
from .cupy_shared import MOST_PARTS, tokens_saved
from .dtypes import KV_NAMES, head_bytes
from .ops import HeadShape, KVShape

if TYPE_CHECKING:
    from ..models.config import LlamaConfig

_NAMES = {dtype: name for name, dtype in KV_NAMES.items()}


class Matrix(NamedTuple):
    """A weight ``[outputs, inputs]`` as it is, and its bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class CupyOps:
    """Implements ``Ops`` in float32, fp16 or bf16 activations; see there for each operator's contract."""

    def __init__(
        self,
        heads: HeadShape,
        kv: KVShape,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: Device,
        max_context: int,
    ) -> None:
        """Compile the kernels, take the pool.  ``reserve`` comes next.  Raises EngineFault with the compiler's text."""
        self.heads, self.kv_shape, self.dtype, self.device = heads, kv, dtype, device
        spec = AttentionSpec(
            dtype=_NAMES[dtype],
            kv_dtype=_NAMES[kv_dtype],
            head_dim=heads.head_dim,
            block_size=kv.block_size,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            windows=any(heads.windows),
            tensor_cores=device.tensor_cores,
        )
        self._attention = Attention(device.raw_module, spec)
        self._rows = RowOps(device.raw_module, spec.dtype, spec.head_dim)
        self.pool = Pool(kv, kv_dtype, device)
        cos, sin = Rotary(heads.rope, heads.head_dim).cos_sin(np.arange(max_context))
        self._cos, self._sin = (part.float().contiguous().to(device.device) for part in (cos, sin))
        self._wide, self._few = Buffers(device.device), Buffers(device.device)
        self._layout = Layout(self._attention, device, kv.block_size, max_context)
        self._weight_bytes = 0

    def reserve(self, num_tokens: int, num_rows: int) -> None:
        """Room for steps of so many tokens and rows.  Buffers that are too small are dropped, so addresses change."""
        self._wide.reserve(num_tokens)
        self._few.reserve(num_rows)
        self._layout.reserve(num_tokens, num_rows)

    @property
    def buffer_bytes(self) -> int:
        """Bytes taken for steps: what arrives on the device, intermediate results, logits."""
        return self._wide.num_bytes + self._few.num_bytes + self._layout.num_bytes

    # --- weights ---

    def weight_bytes(self) -> int:
        return self._weight_bytes

    def table(self, weight: torch.Tensor) -> torch.Tensor:
        kept = torch.empty(weight.shape, dtype=self.dtype, device=self.device.device)
        kept.copy_(weight)  # never the source itself: that may be a mapped file
        self._weight_bytes += kept.nbytes
        return kept

    vector = table

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Matrix:
        return Matrix(self.table(weight), None if bias is None else self.table(bias))

    # --- a step ---

    def prepare(self, batch: StepBatch) -> CupyBatch:
        return self._layout.bring(batch)

    def prepare_decode(self, batch: StepBatch, size: int) -> CupyBatch:
        """A step of one token in each row as one of ``size`` rows, everything at the addresses of the last such call.

        The rows behind those of ``batch`` are empty: they are written nowhere and attend to nothing."""
        return self._layout.bring_decode(batch, size)

    def saved_bytes(self, batch: StepBatch) -> int:
        """Bytes that ``batch`` reads less than row by row, because rows of one token begin with the same blocks."""
        heads = self.kv_shape.num_kv_heads * head_bytes(self.pool.parts[0].dtype, self.heads.head_dim)
        layers = sum(not self.heads.window(layer) for layer in range(self.kv_shape.num_layers))
        return tokens_saved(self._layout.shared(batch)) * 2 * heads * layers

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        self.pool.copy(copies)

    # --- operators ---

    def embed(self, table: torch.Tensor, batch: CupyBatch) -> torch.Tensor:
        out = self._wide.take("residual", len(batch.ids), table.shape[1], self.dtype)
        return torch.index_select(table, 0, batch.ids, out=out)

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = self._wide.take("norm", len(x), x.shape[1], self.dtype)
        self._rows.rms_norm(out, x, weight, eps, rows=len(x), width=x.shape[1], residual=residual)
        return out, x if residual is None else residual

    def linear(self, x: torch.Tensor, weight: Matrix) -> torch.Tensor:
        return _multiply(x, weight, self._wide.take("linear", len(x), len(weight.weight), self.dtype))

    def norm_heads(self, qkv: torch.Tensor, query: torch.Tensor, key: torch.Tensor, eps: float) -> torch.Tensor:
        counts = {"num_heads": self.heads.num_heads, "num_kv_heads": self.heads.num_kv_heads}
        self._rows.norm_heads(qkv, query, key, eps, num_tokens=len(qkv), **counts)
        return qkv

    def rope_and_write(self, qkv: torch.Tensor, layer: int, batch: CupyBatch) -> torch.Tensor:
        angles, pool = (self._cos, self._sin, batch.positions), self.pool.layer(layer)
        self._attention.rope_write(qkv, *angles, batch.slots, pool, num_tokens=len(qkv))
        heads = self.heads
        return qkv.view(len(qkv), -1, heads.head_dim)[:, : heads.num_heads]

    def attention(self, q: torch.Tensor, layer: int, batch: CupyBatch) -> torch.Tensor:
        heads, window = self.heads, self.heads.window(layer)
        out = self._wide.take("attention", len(q), heads.num_heads * heads.head_dim, self.dtype)
        places = self.pool.layer(layer), batch.tables, batch.lengths
        width, stride = batch.table_width, self._attention.qkv_stride
        if rows := batch.decode:
            self._decode(out, q, *places, rows, width, window)
        if rest := batch.prefill:
            self._attention.prefill(
                out,
                q,
                *places,
                rest.starts,
                rest.tiles,
                num_tiles=len(rest.tiles),
                table_width=width,
                q_stride=stride,
                window=window,
            )
        if batch.num_real < len(q):
            out[batch.num_real :].zero_()
        return out

    def _decode(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        pool: LayerPool,
        tables: torch.Tensor,
        lengths: torch.Tensor,
        rows: DecodeRows,
        width: int,
        window: int,
    ) -> None:
        stride, shared = self._attention.qkv_stride, rows.shared
        if shared and not window:
            tiles = len(shared.tiles)
            places = shared.parts, q, pool, tables, shared.tiles, shared.members
            self._attention.prefix(*places, num_tiles=tiles, table_width=width, q_stride=stride)
        else:
            shared = None
        self._attention.decode(
            out,
            q,
            pool,
            tables,
            lengths,
            num_rows=rows.num_rows,
            table_width=width,
            q_stride=stride,
            entries=rows.entries,
            parts=shared.parts if shared else rows.parts,
            num_splits=rows.splits,
            window=window,
            firsts=shared and shared.firsts,
            prefix_parts=shared and shared.prefix_parts,
        )

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        out = self._wide.take("silu_mul", len(gate_up), gate_up.shape[1] // 2, self.dtype)
        self._rows.silu_mul(out, gate_up, rows=len(out), width=out.shape[1])
        return out

    def select(self, x: torch.Tensor, batch: CupyBatch) -> torch.Tensor:
        if batch.all_sample or batch.logits_rows is None:
            return x
        name = f"select from {x.data_ptr()}"  # the model selects from two: the last result and the residual
        out = self._few.take(name, len(batch.logits_rows), x.shape[1], self.dtype)
        return torch.index_select(x, 0, batch.logits_rows, out=out)

    def logits(self, x: torch.Tensor, head: Matrix) -> torch.Tensor:
        out = self._few.take("logits", len(x), len(head.weight), torch.float32)
        if self.dtype == torch.float32:
            return _multiply(x, head, out)
        return out.copy_(_multiply(x, head, self._few.take("head", len(x), len(head.weight), self.dtype)))


def _multiply(x: torch.Tensor, matrix: Matrix, out: torch.Tensor) -> torch.Tensor:
    if matrix.bias is None:
        return torch.mm(x, matrix.weight.t(), out=out)
    return torch.addmm(matrix.bias, x, matrix.weight.t(), out=out)


def workspace_bytes(
    model: LlamaConfig, dtype: torch.dtype, num_tokens: int, num_rows: int, table_width: int, num_multiprocessors: int
) -> int:
    """Most bytes that ``CupyOps`` takes for steps of so many tokens and rows, with block tables of that width."""
    widths = {model.q_size + 2 * model.kv_size, model.hidden_size, 2 * model.ffn_size}  # of matrix products
    wide = num_tokens * (2 * model.hidden_size + sum(widths) + model.q_size + model.ffn_size) * dtype.itemsize
    logits = num_rows * model.vocab_size * (4 + (dtype.itemsize if dtype != torch.float32 else 0))
    selected = num_rows * 2 * model.hidden_size * dtype.itemsize
    tables = 2 * num_rows * table_width * 4  # where they arrive, and where graphs find them
    pairs = num_rows * (1 + MOST_PARTS) + 2 * num_multiprocessors
    parts = pairs * model.num_heads * (model.head_dim + 2) * 4
    indices = (num_tokens * (3 + model.num_heads) + num_rows * (12 + 8 * MOST_PARTS * model.num_heads) + 64) * 4
    drawing = num_rows * 4 * (12 + 16 + 4)  # parameters, banned ids, what is drawn
    return wide + logits + selected + tables + parts + indices + drawing
