"""Paged attention as transformers calls it: once per layer, with the queries, keys and values of a whole step.

The function finds its step in a context variable, because not every model hands unknown arguments down to its layers.
Rows are attended to one by one.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.nn import functional

from ...core.errors import ConfigError
from ..models.foreign_adapters import Bias
from .batch import StepBatch

#: What a layer may be called with beside query, key and value without the result depending on it.
_HARMLESS = {
    "cache", "cache_position", "dropout", "is_causal", "logits_to_keep", "output_attentions",
    "output_hidden_states", "output_router_logits", "past_key_values", "position_embeddings", "position_ids",
    "return_dict", "use_cache",
}  # fmt: skip


class Call(NamedTuple):
    """One layer's attention.  ``query`` ``[heads, tokens, dim]``, ``key`` and ``value`` ``[kv_heads, tokens, dim]``;
    ``window`` 0 and ``softcap`` 0: none.  ``sinks`` ``[heads]``: the score of a key that has no value.  ``bias``: see
    ``foreign_adapters.Bias``."""

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float | None
    window: int
    softcap: float
    sinks: torch.Tensor | None = None
    bias: Bias | None = None


class Attends(Protocol):
    """What is in the context variable while a model runs."""

    def attend(self, call: Call) -> torch.Tensor:
        """``[tokens, heads, value dim]``."""


CURRENT: ContextVar[Attends] = ContextVar("mainspring_attends")


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    bias: Bias | None = None,
    layer_idx: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function for transformers.  ``bias`` comes from adapters only, ``s_aux`` are sinks.

    Raises ConfigError for what would be left out of the result.
    """
    name = type(module).__name__
    layer = getattr(module, "layer_idx", None) if layer_idx is None else layer_idx
    if layer is None:
        raise ConfigError(f"{name} does not say which layer it is (layer_idx)")
    if attention_mask is not None or not (others.get("is_causal") or getattr(module, "is_causal", True)):
        raise ConfigError(f"{name}: attention with a mask of its own, or one that is not causal, is not supported")
    for key_name, given in others.items():
        if given is not None and key_name not in _HARMLESS:
            raise ConfigError(f"{name}: attention with {key_name} is not supported")
    call = Call(int(layer), query[0], key[0], value[0], scaling, sliding_window or 0, softcap or 0.0, s_aux, bias)
    return CURRENT.get().attend(call)[None], None


class Probe:
    """Notes each layer's call and answers zeros: what heads a model has, and which layers come through here."""

    def __init__(self) -> None:
        self.calls: dict[int, Call] = {}

    def attend(self, call: Call) -> torch.Tensor:
        """See ``Attends``."""
        if call.layer in self.calls:
            raise ConfigError(f"two attentions call themselves layer {call.layer}")
        self.calls[call.layer] = call
        return call.query.new_zeros(call.query.shape[1], call.query.shape[0], call.value.shape[2])


class Pool:
    """Keys and values by layer, ``[slots, kv_heads, dim]``."""

    def __init__(self, calls: dict[int, Call], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.block_size = block_size

        def room(part: torch.Tensor) -> torch.Tensor:
            return torch.zeros(num_blocks * block_size, part.shape[0], part.shape[2], dtype=dtype)

        self.layers = {layer: (room(call.key), room(call.value)) for layer, call in calls.items()}

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """See ``Network.copy_blocks``."""
        size = self.block_size
        for source, target in copies:
            for pair in self.layers.values():
                for pool in pair:
                    pool[target * size : (target + 1) * size] = pool[source * size : (source + 1) * size]


def block_bytes(calls: dict[int, Call], block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block in all layers."""
    parts = [part for call in calls.values() for part in (call.key, call.value)]
    return sum(block_size * part.shape[0] * part.shape[2] * dtype.itemsize for part in parts)


@dataclass(frozen=True, slots=True)
class Row:
    """``count`` tokens from ``first`` of a sequence of ``context``, which lies in ``slots`` ``(context,)``."""

    first: int
    count: int
    context: int
    slots: torch.Tensor


class Step:
    """One step over a pool."""

    def __init__(self, pool: Pool, batch: StepBatch) -> None:
        self.pool = pool
        written = batch.slot_mapping[batch.slot_mapping >= 0]
        self.written, self.slots = len(written), torch.from_numpy(written.astype(np.int64))
        size = pool.block_size
        self.rows = []
        for row in range(batch.num_rows):
            context = int(batch.context_lens[row])
            table = batch.block_tables[row, : -(-context // size)].astype(np.int64)
            slots = (table[:, None] * size + np.arange(size)).reshape(-1)[:context]
            first, after = int(batch.cu_seqlens[row]), int(batch.cu_seqlens[row + 1])
            self.rows.append(Row(first, after - first, context, torch.from_numpy(slots)))

    def attend(self, call: Call) -> torch.Tensor:
        """See ``Attends``.  Dummy rows, which lie behind the real ones, get zeros."""
        pools = self.pool.layers[call.layer]
        for pool, fresh in zip(pools, (call.key, call.value), strict=True):
            pool.index_copy_(0, self.slots, fresh[:, : self.written].transpose(0, 1).to(pool.dtype))
        out = call.query.new_zeros(call.query.shape[1], call.query.shape[0], call.value.shape[2])
        for row in self.rows:
            begin = max(0, row.context - row.count - call.window + 1) if call.window else 0
            keys, values = (
                pool.index_select(0, row.slots[begin:]).to(call.query.dtype).transpose(0, 1) for pool in pools
            )
            query = call.query[:, row.first : row.first + row.count]
            out[row.first : row.first + row.count] = _attention(query, keys, values, call, begin).transpose(0, 1)
        return out


def _attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, call: Call, begin: int) -> torch.Tensor:
    """``query`` are the last of the tokens that ``keys`` and ``values`` are of: ``[heads, tokens, dim]``.  ``begin``:
    the position of the first of these."""
    count, context = query.shape[1], keys.shape[1]
    group = query.shape[0] // keys.shape[0]
    if group > 1:
        keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    seen = None
    if count > 1 or 0 < call.window < context:
        seen = torch.ones(count, context, dtype=torch.bool).tril(context - count)
        if call.window:
            seen = seen.triu(context - count - call.window + 1)
    if not call.softcap and call.sinks is None and call.bias is None:
        return functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], attn_mask=seen, scale=call.scaling
        )[0]
    scaling = call.scaling if call.scaling is not None else query.shape[2] ** -0.5
    scores = query @ keys.transpose(1, 2) * scaling
    if call.softcap:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.bias is not None:
        scores = scores + call.bias(begin + context)[..., begin:]
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    if call.sinks is not None:
        sinks = call.sinks.to(scores.dtype)[:, None, None].expand(-1, count, 1)
        scores = torch.cat([scores, sinks], -1)
    return scores.float().softmax(-1)[..., :context].to(query.dtype) @ values
