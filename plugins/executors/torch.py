"""The torch executor: one thread that loads the model, takes the KV memory once, and runs steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from ..settings import Config
from ...core.errors import ConfigError, EngineFault
from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import ExecutorInfo, SampleOutput
from ..models.cache import load_weights
from ..models.checkpoint import Checkpoint, open_checkpoint
from ..models.config import LlamaConfig
from ..models.llama import Llama, check_repeated_head
from . import memory
from .batch import Limits, StepBatch, build
from .dtypes import Formats, resolve
from .ops import HeadShape, KVShape
from .torch_ops import TorchOps, has_bf16_instructions, workspace_bytes


class TorchExecutor:
    """Implements ``core.policy.Executor`` with ``TorchOps``.  Everything runs on the caller's one thread."""

    def __init__(self, options: Any, config: Config) -> None:
        self.config = config
        self._model: Llama | None = None
        self._ops: TorchOps | None = None
        self._limits: Limits | None = None
        self._last_ids: dict[str, int] = {}

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """Open the model, check that it fits, load it.  Raises ConfigError for whatever the operator can change."""
        config = self.config
        formats = resolve(config.executor, has_bf16_instructions())
        threads = config.executor.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(threads)
        checkpoint = open_checkpoint(config.model.path)
        model = checkpoint.config
        for note in model.notes:
            progress(note)
        max_context = context_limit(config, model)
        kv, ledger = self._plan(model, formats, max_context)
        progress(f"{model.name}: {checkpoint.format}; {formats.describe()}; {ledger.describe()}")
        self._build(checkpoint, formats, kv, progress)
        self._limits = Limits(model.vocab_size, max_context, kv.num_blocks, kv.block_size)
        return ExecutorInfo(
            model=model.name,
            vocab_size=model.vocab_size,
            max_context=max_context,
            end_token_ids=model.end_token_ids,
            num_blocks=kv.num_blocks,
            memory=ledger.columns(),
            detail=f"torch {torch.__version__}, {threads} threads, {checkpoint.format}, {formats.describe()}",
        )

    def _plan(self, model: LlamaConfig, formats: Formats, max_context: int) -> tuple[KVShape, memory.Ledger]:
        block_size = self.config.allocator.block_size
        elements = sum(_size(shape) for shape in model.tensor_shapes().values())
        if model.tied:
            elements += model.vocab_size * model.hidden_size  # once as the table, once packed as the head
        ledger = memory.plan(
            self.config,
            weights=elements * formats.compute.itemsize,
            workspace=workspace_bytes(model, self.config.scheduler, max_context, formats),
            block_bytes=memory.kv_bytes(
                model.num_layers, model.num_kv_heads, model.head_dim, block_size, formats.kv.itemsize
            ),
            max_context=max_context,
            available=memory.available_bytes(),
        )
        return KVShape(model.num_layers, ledger.num_blocks, block_size, model.num_kv_heads, model.head_dim), ledger

    def _build(self, checkpoint: Checkpoint, formats: Formats, kv: KVShape, progress: Callable[[str], None]) -> None:
        model = checkpoint.config
        heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope_theta)
        with torch.inference_mode():
            check_repeated_head(checkpoint)
            read = load_weights(checkpoint, formats.weights, progress)
            self._ops = TorchOps(heads, kv, formats.compute, formats.kv)
            self._model = Llama(model, read, self._ops)

    def execute(self, launch: StepLaunch, sample: Callable[[Any, Any], SampleOutput]) -> StepResult:
        """One step.  Raises EngineFault for a launch that does not fit the pool, the vocabulary or itself."""
        if self._model is None or self._ops is None or self._limits is None:
            raise EngineFault("execute() before load()")
        launched = time.monotonic()
        for rid in launch.released:
            self._last_ids.pop(rid, None)
        batch = build(launch, self._last_ids, self._limits)
        with torch.inference_mode():
            if launch.copies:
                self._ops.copy_blocks(launch.copies)
            logits = self._model.forward(self._ops.prepare(batch)) if batch.num_tokens else None
            drawn = SampleOutput([], []) if logits is None else sample(logits, launch.sampling)
        return self._result(launch, batch, drawn, launched)

    def _result(self, launch: StepLaunch, batch: StepBatch, drawn: SampleOutput, launched: float) -> StepResult:
        rids = batch.sampling_rids
        if len(drawn.token_ids) != len(rids):
            raise EngineFault(f"the sampler drew {len(drawn.token_ids)} ids for {len(rids)} rows")
        self._last_ids.update(zip(rids, drawn.token_ids, strict=True))
        return StepResult(
            step=launch.step,
            rids=rids,
            token_ids=tuple(drawn.token_ids),
            failed=tuple((rids[row], why) for row, why in drawn.failed),
            launched=launched,
            finished=time.monotonic(),
        )

    def close(self) -> None:
        """Free weights and pool."""
        self._model = self._ops = self._limits = None
        self._last_ids.clear()


def context_limit(config: Config, model: LlamaConfig) -> int:
    """Tokens one request may hold: ``model.max_context``, or what the model's positions support (H-04)."""
    asked = config.model.max_context
    if asked > model.max_positions:
        raise ConfigError(f"model.max_context = {asked}: {model.name} supports 1 to {model.max_positions} positions")
    return asked or model.max_positions


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for count in shape:
        total *= count
    return total


@hookimpl
def register_executors(register: Register) -> None:
    """Offer this executor as ``executor.use = "torch"``."""
    register("torch", TorchExecutor)
