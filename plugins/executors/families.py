"""Loading the families that this package runs itself, over whichever backend runs their operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch

from ..models.cache import load_weights
from ..models.checkpoint import Checkpoint
from ..models.config import LlamaConfig
from ..models.llama import Llama, Read, check_repeated_head
from ..settings import Config
from . import memory
from .batch import Limits, StepBatch
from .dtypes import Formats, head_bytes
from .loaded import Loaded, Network, context_limit
from .ops import HeadShape, KVShape, Ops
from .torch_ops import TorchOps, workspace_bytes


class Backend(Protocol):
    """What runs a network's operators, and where.  What has a body here suits backends that keep numbers."""

    def workspace_bytes(self, model: LlamaConfig, max_context: int) -> int:
        """Bytes of the largest intermediate results of one step."""

    def free_bytes(self) -> tuple[int, int | None]:
        """Memory to take weights and pool from; and the host's, if that is another."""
        return memory.available_bytes(), None

    def network(
        self, model: LlamaConfig, read: Read, heads: HeadShape, kv: KVShape, max_context: int
    ) -> tuple[Network, Ops]:
        """The network with its weights packed, and the operators under it."""

    def read(self, checkpoint: Checkpoint, formats: Formats, progress: Callable[[str], None]) -> Read:
        """How the weights come to be packed."""
        return load_weights(checkpoint, formats.weights, progress)

    def weight_bytes(self, checkpoint: Checkpoint, formats: Formats) -> int:
        """Bytes of the packed weights."""
        model = checkpoint.config
        elements = sum(math.prod(shape) for shape in model.tensor_shapes().values())
        if model.tied:
            elements += model.vocab_size * model.hidden_size  # once as the table, once packed as the head
        return elements * formats.compute.itemsize

    def head_bytes(self, model: LlamaConfig, formats: Formats) -> int:
        """Bytes of one head of one token's keys (or values) in the pool."""
        return head_bytes(formats.kv, model.head_dim)


class TorchBackend(Backend):
    """Implements ``Backend`` over ``TorchOps``."""

    def __init__(self, config: Config, formats: Formats) -> None:
        self.config, self.formats = config, formats

    def workspace_bytes(self, model: LlamaConfig, max_context: int) -> int:
        return workspace_bytes(model, self.config.scheduler, max_context, self.formats)

    def network(
        self, model: LlamaConfig, read: Read, heads: HeadShape, kv: KVShape, max_context: int
    ) -> tuple[Network, Ops]:
        ops = TorchOps(heads, kv, self.formats.compute, self.formats.kv)
        return FamilyNetwork(Llama(model, read, ops), ops), ops


class FamilyNetwork:
    """Implements ``loaded.Network``."""

    def __init__(self, model: Llama, ops: Ops) -> None:
        self.model, self.ops = model, ops

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """See ``Network.forward``."""
        return self.model.forward(self.ops.prepare(batch))

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """See ``Network.copy_blocks``."""
        self.ops.copy_blocks(copies)


def load_family(
    config: Config,
    checkpoint: Checkpoint,
    formats: Formats,
    progress: Callable[[str], None],
    backend: Backend | None = None,
) -> Loaded:
    """Check that the model fits, read and pack it for ``backend`` (None: torch on the CPU).  Raises ConfigError."""
    backend = backend or TorchBackend(config, formats)
    model = checkpoint.config
    for note in model.notes:
        progress(note)
    max_context = context_limit(config, model.name, model.max_positions, model.most_positions)
    kv, ledger = _plan(config, checkpoint, formats, max_context, backend)
    progress(f"{model.name}: {checkpoint.format}; {formats.describe()}; {ledger.describe()}")
    heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope, model.windows)
    with torch.inference_mode():
        check_repeated_head(checkpoint)
        read = backend.read(checkpoint, formats, progress)
        network, ops = backend.network(model, read, heads, kv, max_context)
    progress(f"weights packed for {formats.target}: {memory.show(ops.weight_bytes())}")
    limits = Limits(model.vocab_size, max_context, kv.num_blocks, kv.block_size)
    return Loaded(model.name, checkpoint.format, network, limits, model.end_token_ids, ledger)


def _plan(
    config: Config, checkpoint: Checkpoint, formats: Formats, max_context: int, backend: Backend
) -> tuple[KVShape, memory.Ledger]:
    model, block_size = checkpoint.config, config.allocator.block_size
    available, host_available = backend.free_bytes()
    head = backend.head_bytes(model, formats)
    ledger = memory.plan(
        config,
        weights=backend.weight_bytes(checkpoint, formats),
        workspace=backend.workspace_bytes(model, max_context),
        block_bytes=memory.kv_bytes(model.num_layers, model.num_kv_heads, head, block_size, 1),
        max_context=max_context,
        available=available,
        host_available=host_available,
    )
    host_blocks = memory.num_host_blocks(config)
    shape = KVShape(model.num_layers, ledger.num_blocks, block_size, model.num_kv_heads, model.head_dim, host_blocks)
    return shape, ledger
