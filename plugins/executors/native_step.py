"""A whole step as one call: the network's packed weights by address, laid out once."""

from __future__ import annotations

import ctypes

import torch

from ..models.llama import Llama
from . import native_abi as abi
from .batch import StepBatch
from .native_ops import NativeOps


class NativeNetwork:
    """Implements ``loaded.Network``.  ``Llama`` holds the weights; its ``forward`` is what the one call is tested
    against, operator by operator."""

    def __init__(self, model: Llama, ops: NativeOps, shortlist: bool = True) -> None:
        """``shortlist``: whether there is one where it pays."""
        self.model, self.ops = model, ops
        model.head.struct.int8_activations = 0  # its results are the logits themselves
        config = model.config
        layers = (abi.Layer * config.num_layers)()
        for index, layer in enumerate(model.layers):
            query, key = layer.head_norms or (None, None)
            layers[index] = abi.Layer(
                layer.input_norm.data_ptr(), layer.ffn_norm.data_ptr(),
                None if query is None else query.data_ptr(), None if key is None else key.data_ptr(),
                layer.qkv.struct, layer.output.struct, layer.gate_up.struct, layer.down.struct,
                ops.heads.window(index), 0,
            )  # fmt: skip
        self.struct = abi.Model(
            layers, model.norm.data_ptr(), model.embedding.struct, model.head.struct, None, ops.kv,
            config.num_layers, config.hidden_size, config.num_heads, config.ffn_size, config.vocab_size,
            config.norm_eps,
        )  # fmt: skip

        self.shortlist = ops.shortlist(self.struct) if shortlist else None
        if self.shortlist is not None:
            self.struct.shortlist = ctypes.pointer(self.shortlist.struct)

    def __del__(self) -> None:
        self.ops.finish()  # before what a step that is under way uses

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """See ``Network.forward``."""
        return self.ops.step(self.struct, self.ops.prepare(batch))

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """See ``Network.copy_blocks``; waits for the steps that were begun."""
        self.ops.finish()
        self.ops.copy_blocks(copies)
