"""The native executor: the kernels of ``plugins/kernels/cpu``, built for this machine when first needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import ExecutorInfo
from ..models.cache import load_weights
from ..models.checkpoint import Checkpoint
from ..models.config import LlamaConfig
from ..models.foreign import ForeignFolder
from ..models.gguf_header import TYPES_BY_NAME
from ..models.llama import Llama, Read
from ..models.mapped import NAMES
from ..settings import Config
from . import native_abi
from .batch import StepBatch
from .cores import threads_in_words, usable_cores
from .dtypes import Formats, NativeFormats, head_bytes, resolve_native
from .families import Backend, load_family
from .loaded import Network
from .native_build import CannotBuild, best_instruction_set, build, compiler
from .native_draw import NativeDraw, prepare_draw
from .native_ops import NativeOps
from .native_shortlist import shortlist_bytes, worth_it
from .native_step import NativeNetwork
from .native_weights import kept_format
from .ops import HeadShape, KVShape, Ops
from .overlap import Sample
from .overlapping import Begun, OverlappingExecutor, Wait
from .standard_plan import StandardPlan, can_draw
from .torch import TorchExecutor

#: To lay out so many tokens and entries of block tables takes a third of a millisecond at most.
FEW_TOKENS, FEW_ENTRIES = 64, 2048
#: Of ``attention.hpp``: tokens of a span, and rows of a unit.
SPAN, UNIT_ROWS = 128, 24


@dataclass(frozen=True)
class Options:
    """Options of ``native``."""

    shortlist: bool = True  # whether a coarse copy of a large head finds the best tokens


class NativeExecutor(OverlappingExecutor):
    """Steps of the native kernels.  What the kernels cannot run goes to torch, which one line says."""

    def __init__(
        self, options: Options | None, config: Config, opened: Checkpoint | ForeignFolder | None = None
    ) -> None:
        super().__init__(None, config, opened)
        self.options = options or Options()

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """See ``TorchExecutor.load``."""
        config = self.config
        opened = self.take_model()
        if isinstance(opened, ForeignFolder):
            self._opened = opened
            progress(f"the native kernels run this package's own families: {opened.path.name} runs on torch")
            return super().load(progress)
        formats = resolve_native(config.executor)
        try:
            kind = best_instruction_set()
            library = native_abi.load(build(kind, progress))
        except (CannotBuild, OSError) as error:
            self._opened = opened
            progress(f"no native kernels: {error}; torch runs the model")
            return super().load(progress)
        threads = config.executor.threads or usable_cores()
        torch.set_num_threads(threads)
        backend = NativeBackend(config, formats, library, threads, self.options.shortlist)
        self._loaded = loaded = load_family(config, opened, formats, progress, backend)
        return self.info(loaded, f"native kernels ({kind.name}), {threads_in_words(threads)}", formats)

    def begins_at_once(self, launch: StepLaunch, sample: Sample) -> bool:
        """See ``overlap.begins_at_once``."""
        network, rows = None if self._loaded is None else self._loaded.network, launch.rows
        if not isinstance(network, NativeNetwork) or launch.copies or launch.padding:
            return False
        tokens, entries = sum([row.count for row in rows]), sum([len(row.block_table) for row in rows])
        longest = max([row.start + row.count for row in rows], default=0)
        few = tokens <= FEW_TOKENS and entries <= FEW_ENTRIES and network.ops.can_turn(longest)
        return few and can_draw(launch.sampling, sample)

    def begin(self, launch: StepLaunch, sample: Sample, alone: bool = False) -> StepResult | Begun:
        """See ``OverlappingExecutor.begin``; torch computes whole steps."""
        if self._native:
            return super().begin(launch, sample, alone)
        return TorchExecutor.execute(self, launch, sample)

    @property
    def _native(self) -> bool:
        return self._loaded is not None and isinstance(self._loaded.network, NativeNetwork)

    def compute(
        self,
        batch: StepBatch,
        plan: StandardPlan | None,
        before: NativeDraw | None,
        takes: Sequence[tuple[int, int]],
        alone: bool = False,
    ) -> tuple[torch.Tensor | None, NativeDraw | None, Wait]:
        """See ``OverlappingExecutor.compute``."""
        assert self._loaded is not None and isinstance(self._loaded.network, NativeNetwork)
        ops, model = self._loaded.network.ops, self._loaded.network.struct
        step = ops.prepare(batch)
        draw = None if plan is None else prepare_draw(plan, len(batch.logits_rows), model.vocab)
        if alone:
            logits, moments = ops.time_step(model, step, draw)
            return logits, draw, lambda: moments
        logits, wait = ops.begin(model, step, draw, before, takes)
        return logits, draw, wait

    def close(self) -> None:
        """See ``Executor.close``."""
        network = None if self._loaded is None else self._loaded.network
        if isinstance(network, NativeNetwork):
            network.ops.close()
        super().close()


def native_trouble(model: Checkpoint | ForeignFolder) -> str | None:
    """Why the kernels cannot run this model on this machine; None if they can, or can be built."""
    if isinstance(model, ForeignFolder):
        return f"{model.architecture} runs through transformers"
    try:
        best_instruction_set()
        compiler()
    except CannotBuild as error:
        return str(error)
    return None


class NativeBackend(Backend):
    """``NativeOps`` for families.  ``formats`` are ``NativeFormats`` throughout."""

    def __init__(
        self, config: Config, formats: NativeFormats, library: Any, threads: int, shortlist: bool = True
    ) -> None:
        self.config, self.formats, self._library, self.threads = config, formats, library, threads
        self.shortlist = shortlist

    def workspace_bytes(self, model: LlamaConfig, max_context: int) -> int:
        """Intermediate results and logits of the largest step, what its threads find in spans of long contexts, and
        the rotations of every position."""
        limits = self.config.scheduler
        tokens, widest = limits.token_budget, max(model.hidden_size, model.q_size, model.ffn_size)
        rows = model.hidden_size + 2 * model.q_size + 2 * model.kv_size + 2 * model.ffn_size + 2 * widest
        logits = min(limits.max_running, tokens) * model.vocab_size
        logits += logits // 16 if self.shortlist else 0  # its lists
        found = self._units(model, tokens) * -(-max_context // SPAN) * UNIT_ROWS * (self._padded(model) + 2)
        return 4 * (tokens * rows + logits + found + max_context * model.head_dim)

    def _units(self, model: LlamaConfig, tokens: int) -> int:
        """Most parts of a step's attention whose spans are computed apart, see ``plan`` in ``engine.cpp``."""
        heads = -(-model.num_heads // model.num_kv_heads // UNIT_ROWS) * model.num_kv_heads
        return min(4 * self.threads, tokens * heads) if self.threads > 1 else 0

    def _padded(self, model: LlamaConfig) -> int:
        return native_abi.padded_dim(self._library, model.head_dim)

    def network(
        self, model: LlamaConfig, read: Read, heads: HeadShape, kv: KVShape, max_context: int
    ) -> tuple[Network, Ops]:
        formats = self.formats
        ops = NativeOps(
            heads,
            kv,
            formats.kv,
            library=self._library,
            threads=self.threads,
            weights=formats.kept,
            int8_activations=formats.fast,
        )
        return NativeNetwork(Llama(model, read, ops), ops, self.shortlist), ops

    def read(self, checkpoint: Checkpoint, formats: Formats, progress: Callable[[str], None]) -> Read:
        if self.formats.numbers is not None:
            return load_weights(checkpoint, self.formats.numbers, progress)
        types = ", ".join(f"{count} {kind}" for kind, count in sorted(checkpoint.types.items()))
        progress(f"weights: {len(checkpoint.names)} tensors ({types}), used as they are stored")
        return checkpoint.matrix

    def weight_bytes(self, checkpoint: Checkpoint, formats: Formats) -> int:
        model, numbers = checkpoint.config, self.formats.numbers
        total = 0
        for name, shape in model.tensor_shapes().items():
            if len(shape) == 1:
                total += 4 * shape[0]
                continue
            stored = checkpoint.stored(name) if numbers is None else NAMES[numbers]
            embedding = name == "model.embed_tokens.weight"
            if embedding:
                total += stored_bytes(stored, shape)
            if not embedding or model.tied:
                kept_as = kept_format(stored, self.formats.kept)
                total += self._library.ms_segment_bytes(kept_as, *shape)
                head = embedding or name == "lm_head.weight"
                if head and self.shortlist and worth_it(kept_as, *shape):
                    total += shortlist_bytes(self._library, *shape)
        return total

    def head_bytes(self, model: LlamaConfig, formats: Formats) -> int:
        return head_bytes(formats.kv, self._padded(model))


def stored_bytes(stored: str, shape: tuple[int, ...]) -> int:
    """Bytes of a matrix as the file has it."""
    kind = TYPES_BY_NAME[stored]
    return math.prod(shape) // kind.elements * kind.size


@hookimpl
def register_executors(register: Register) -> None:
    """Offer this executor as ``executor.use = "native"``."""
    register("native", NativeExecutor, Options)
