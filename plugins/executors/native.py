"""Loading the families that this package runs itself, over ``TorchOps``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ..models.cache import load_weights
from ..models.checkpoint import Checkpoint
from ..models.config import LlamaConfig
from ..models.llama import Llama, check_repeated_head
from ..settings import Config
from . import memory
from .batch import Limits, StepBatch
from .dtypes import Formats, head_bytes
from .loaded import Loaded, context_limit
from .ops import HeadShape, KVShape
from .torch_ops import TorchOps, workspace_bytes


class NativeNetwork:
    """Implements ``loaded.Network``."""

    def __init__(self, model: Llama, ops: TorchOps) -> None:
        self.model, self.ops = model, ops

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """See ``Network.forward``."""
        return self.model.forward(self.ops.prepare(batch))

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """See ``Network.copy_blocks``."""
        self.ops.copy_blocks(copies)


def load_native(config: Config, checkpoint: Checkpoint, formats: Formats, progress: Callable[[str], None]) -> Loaded:
    """Check that the model fits, read and pack it.  Raises ConfigError."""
    model = checkpoint.config
    for note in model.notes:
        progress(note)
    max_context = context_limit(config, model.name, model.max_positions, model.most_positions)
    kv, ledger = _plan(config, model, formats, max_context)
    progress(f"{model.name}: {checkpoint.format}; {formats.describe()}; {ledger.describe()}")
    heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope, model.windows)
    with torch.inference_mode():
        check_repeated_head(checkpoint)
        read = load_weights(checkpoint, formats.weights, progress)
        ops = TorchOps(heads, kv, formats.compute, formats.kv)
        network = NativeNetwork(Llama(model, read, ops), ops)
    progress(f"weights packed for {formats.compute}: {memory.show(ops.weight_bytes())}".replace("torch.", ""))
    limits = Limits(model.vocab_size, max_context, kv.num_blocks, kv.block_size)
    return Loaded(model.name, checkpoint.format, network, limits, model.end_token_ids, ledger)


def _plan(config: Config, model: LlamaConfig, formats: Formats, max_context: int) -> tuple[KVShape, memory.Ledger]:
    block_size = config.allocator.block_size
    elements = sum(math.prod(shape) for shape in model.tensor_shapes().values())
    if model.tied:
        elements += model.vocab_size * model.hidden_size  # once as the table, once packed as the head
    ledger = memory.plan(
        config,
        weights=elements * formats.compute.itemsize,
        workspace=workspace_bytes(model, config.scheduler, max_context, formats),
        block_bytes=memory.kv_bytes(
            model.num_layers, model.num_kv_heads, head_bytes(formats.kv, model.head_dim), block_size, 1
        ),
        max_context=max_context,
        available=memory.available_bytes(),
    )
    host_blocks = memory.num_host_blocks(config)
    shape = KVShape(model.num_layers, ledger.num_blocks, block_size, model.num_kv_heads, model.head_dim, host_blocks)
    return shape, ledger
