"""The executor for CUDA devices: ``executor.use = "cupy"``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch

from ...core.errors import ConfigError, EngineFault
from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import ExecutorInfo, SampleOutput
from ..kernels.cuda.names import HEAD_DIMS
from ..models.cache import Read
from ..models.checkpoint import Checkpoint, open_model
from ..models.config import LlamaConfig
from ..models.foreign import ForeignFolder
from ..models.llama import Llama
from ..settings import Config
from . import memory
from .batch import StepBatch, build
from .cupy_begun import Begun
from .cupy_device import Device, find_device
from .cupy_network import CupyNetwork
from .cupy_ops import CupyOps, workspace_bytes
from .dtypes import DEVICE_NAMES, Formats, resolve
from .families import Backend, load_family
from .loaded import Network
from .ops import HeadShape, KVShape, Ops
from .overlap import Sample, result_of
from .standard_plan import can_draw
from .torch import TorchExecutor

#: Query heads that may share a key/value head.
MOST_SHARING = 16


@dataclass(frozen=True)
class Options:
    """Options of ``cupy``."""

    device: Annotated[int, msgspec.Meta(ge=0)] = 0  # which CUDA device, as torch numbers them
    graphs: bool = True  # decode steps as captured CUDA graphs


class CupyExecutor(TorchExecutor):
    """Steps of a network on a device, begun and ended apart (``overlap``).  Everything but the waiting for a step runs
    on the caller's one thread."""

    def __init__(self, options: Options | None, config: Config, device: Device | None = None) -> None:
        """``device`` None: the CUDA device that the options name, looked for when the model is loaded."""
        super().__init__(None, config)
        self.options = options or Options()
        self._device = device
        self._network: CupyNetwork | None = None
        self._older: Begun | None = None  # the step before the last one
        self._before: Begun | None = None  # the last step, whose ids are on the device still

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """Find the device, compile the kernels, load the model.  Raises ConfigError for whatever the operator can
        change, and EngineFault with the compiler's whole text if the kernels do not compile."""
        checkpoint = open_model(self.config.model.path)
        trouble = model_trouble(checkpoint)
        if trouble or isinstance(checkpoint, ForeignFolder):
            raise ConfigError(f"executor.use = 'cupy': {trouble}: set executor.use = 'torch'")
        device = self._device = self._device or find_device(self.options.device)
        formats = resolve(self.config.executor, device.tensor_cores, DEVICE_NAMES)
        progress(f"device: {device.description}")
        backend = CupyBackend(self.config, self.options, device, formats, progress)
        self._loaded = loaded = load_family(self.config, checkpoint, formats, progress, backend)
        self._network = backend.made
        return self.info(loaded, f"torch {torch.__version__}, {device.description}", formats)

    def execute(self, launch: StepLaunch, sample: Sample) -> StepResult:
        """See ``Executor.execute``."""
        return result_of(self.begin(launch, sample))

    def begin(self, launch: StepLaunch, sample: Sample) -> StepResult | Begun:
        """See ``overlap.begin``.  A step that the kernel draws from is only launched: it may be begun while the one
        before it is running, whose ids it takes on the device.  Any other sampler is called, and waited for."""
        if self._loaded is None or self._network is None or self._device is None:
            raise EngineFault("execute() before load()")
        launched, network, before = time.monotonic(), self._network, self._before
        self._settle(self._older)
        self._older = None
        for rid in launch.released:
            self._last_ids.pop(rid, None)
        with torch.inference_mode():
            if launch.copies:
                network.copy_blocks(launch.copies)
            batch = build(launch, self._last_ids, self._loaded.limits)
            if not batch.num_tokens:
                return self._result(launch, batch, SampleOutput([], []), launched)
            takes = before.takes(launch.rows, batch.cu_seqlens) if before else []
            draws = can_draw(launch.sampling, sample) and batch.logits_rows.size > 0
            network.draws.bring(launch.sampling if draws else None, takes)
            logits = network.forward(batch, before.drawn if before and takes else None)
            if logits is not None and not draws:
                self._device.synchronize()
                return self._drawn_by(sample, logits, launch, batch, launched)
            drawn = None if logits is None else network.draws.draw(logits)
        begun = Begun(launch.step, batch.sampling_rids, drawn, self._device.mark(), launched, before)
        self._last_ids.update(dict.fromkeys(begun.rids, 0))  # known, wherever it is
        self._older, self._before = before, begun
        return begun

    def _drawn_by(
        self, sample: Sample, logits: torch.Tensor, launch: StepLaunch, batch: StepBatch, launched: float
    ) -> StepResult:
        self._settle(self._before)
        self._before = None
        return self._result(launch, batch, sample(logits, launch.sampling), launched)

    def _settle(self, begun: Begun | None) -> None:
        """Keep the ids of a step that is over."""
        if begun is not None and begun.drawn is not None:
            ids, _ = begun.drawn.read()
            self._last_ids.update((rid, at) for rid, at in zip(begun.rids, ids, strict=True) if rid in self._last_ids)

    def close(self) -> None:
        """Free weights and pool now: an executor that takes this one's place measures what is free."""
        super().close()
        self._network = self._older = self._before = None
        gc.collect()


class CupyBackend(Backend):
    """A device and its kernels for families."""

    def __init__(
        self, config: Config, options: Options, device: Device, formats: Formats, progress: Callable[[str], None]
    ) -> None:
        self.config, self.options, self.device, self.formats = config, options, device, formats
        self._progress = progress
        self.made: CupyNetwork | None = None
        limits = config.scheduler
        self.most_tokens, self.most_rows = limits.token_budget, min(limits.max_running, limits.token_budget)

    def workspace_bytes(self, model: LlamaConfig, max_context: int) -> int:
        table_width = -(-max_context // self.config.allocator.block_size)
        largest = self.most_tokens, self.most_rows, table_width
        angles = max_context * model.head_dim * 4
        return angles + workspace_bytes(model, self.formats.compute, *largest, self.device.num_multiprocessors)

    def free_bytes(self) -> tuple[int, int | None]:
        return self.device.free_bytes(), memory.available_bytes()

    def network(
        self, model: LlamaConfig, read: Read, heads: HeadShape, kv: KVShape, max_context: int
    ) -> tuple[Network, Ops]:
        self._progress("compiling kernels, or finding them compiled")
        ops = CupyOps(heads, kv, self.formats.compute, self.formats.kv, self.device, max_context)
        llama = Llama(model, read, ops)
        self.made = network = CupyNetwork(llama, ops, self.most_tokens, self.most_rows, self.options.graphs)
        sizes = ", ".join(map(str, network.graphs.sizes)) or "no size"
        self._progress(f"decode steps captured as graphs for batches of {sizes}")
        return network, ops


def model_trouble(model: Checkpoint | ForeignFolder) -> str | None:
    """Why no kernel runs this model; None if they do."""
    if isinstance(model, ForeignFolder):
        return f"{model.architecture} runs through transformers, on the CPU only"
    facts = model.config
    if facts.head_dim not in HEAD_DIMS:
        *others, last = HEAD_DIMS
        return f"head_dim = {facts.head_dim}, and the kernels have {', '.join(map(str, others))} and {last}"
    if (group := facts.num_heads // facts.num_kv_heads) > MOST_SHARING:
        return f"{group} heads share a key/value head, and the kernels take 1 to {MOST_SHARING}"
    for key in ("hidden_size", "ffn_size"):
        if getattr(facts, key) % 8:
            return f"{key} = {getattr(facts, key)}, and the kernels take multiples of 8"
    return None


@hookimpl
def register_executors(register: Register) -> None:
    """Offer this executor as ``executor.use = "cupy"``."""
    register("cupy", CupyExecutor, Options)
