"""The executor for CUDA devices: ``executor.use = "cupy"``."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch

from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import ExecutorInfo
from ..kernels.cuda.names import HEAD_DIMS
from ..models.cache import Read
from ..models.checkpoint import Checkpoint, open_model
from ..models.config import LlamaConfig
from ..models.foreign import ForeignFolder
from ..models.llama import Llama
from ..settings import Config
from . import memory
from .batch import StepBatch
from .cupy_device import Device, Wait, find_device
from .cupy_draw import Drawn
from .cupy_network import CupyNetwork
from .cupy_ops import CupyOps, workspace_bytes
from .dtypes import DEVICE_NAMES, Formats, resolve
from .families import Backend, load_family
from .loaded import Network
from .ops import HeadShape, KVShape, Ops
from .overlap import Sample
from .overlapping import Begun, OverlappingExecutor
from .standard_plan import StandardPlan

#: Query heads that may share a key/value head.
MOST_SHARING = 16


@dataclass(frozen=True)
class Options:
    """Options of ``cupy``."""

    device: Annotated[int, msgspec.Meta(ge=0)] = 0  # which CUDA device, as torch numbers them
    graphs: bool = True  # decode steps as captured CUDA graphs


class CupyExecutor(OverlappingExecutor):
    """Steps of a network on a device."""

    def __init__(self, options: Options | None, config: Config, device: Device | None = None) -> None:
        """``device`` None: the CUDA device that the options name, looked for when the model is loaded."""
        super().__init__(None, config)
        self.options = options or Options()
        self._device = device
        self._network: CupyNetwork | None = None

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

    def begin(self, launch: StepLaunch, sample: Sample, alone: bool = False) -> StepResult | Begun:
        """See ``OverlappingExecutor.begin``.  The device goes on by itself, whether anything is under way or not."""
        with torch.inference_mode():
            return super().begin(launch, sample)

    def compute(
        self,
        batch: StepBatch,
        plan: StandardPlan | None,
        before: Drawn | None,
        takes: Sequence[tuple[int, int]],
        alone: bool = False,
    ) -> tuple[torch.Tensor | None, Drawn | None, Wait]:
        """See ``OverlappingExecutor.compute``."""
        assert self._network is not None and self._device is not None
        network, draws = self._network, self._network.draws
        draws.bring(plan, takes)
        logits = network.forward(batch, before)
        if plan is None and logits is not None:
            return logits, None, self._device.synchronize
        drawn = None if logits is None else draws.draw(logits)
        return logits, drawn, self._device.mark()

    def close(self) -> None:
        """Free weights and pool now: an executor that takes this one's place measures what is free."""
        super().close()
        self._network = None
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
