"""The torch executor: one thread that loads the model, takes the KV memory once, and runs steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ...core.errors import EngineFault
from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import ExecutorInfo, SampleOutput
from ..models.checkpoint import Checkpoint, open_model
from ..models.foreign import ForeignFolder
from ..settings import Config
from .batch import StepBatch, build, fill
from .cores import threads_in_words, usable_cores
from .dtypes import Formats, resolve
from .families import load_family
from .foreign import load_foreign
from .loaded import Loaded
from .overlap import Sample
from .packed_linear import has_bf16_instructions


class TorchExecutor:
    """Implements ``core.policy.Executor`` for CPUs.  Everything runs on the caller's one thread."""

    def __init__(self, options: Any, config: Config, opened: Checkpoint | ForeignFolder | None = None) -> None:
        """``opened``: the configured model, if somebody has opened it already; let go of once it is loaded."""
        self.config, self._opened = config, opened
        self._loaded: Loaded | None = None
        self._last_ids: dict[str, int] = {}

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """Open the model, check that it fits, load it.  Raises ConfigError for whatever the operator can change."""
        config = self.config
        formats = resolve(config.executor, has_bf16_instructions())
        threads = config.executor.threads or usable_cores()
        torch.set_num_threads(threads)
        opened = self.take_model()
        if isinstance(opened, ForeignFolder):
            loaded = load_foreign(config, opened, formats, progress)
        else:
            loaded = load_family(config, opened, formats, progress)
        self._loaded = loaded
        return self.info(loaded, f"torch {torch.__version__}, {threads_in_words(threads)}", formats)

    def take_model(self) -> Checkpoint | ForeignFolder:
        """The opened model, for the one load there is.  Raises ConfigError."""
        opened, self._opened = self._opened or open_model(self.config.model.path), None
        return opened

    def info(self, loaded: Loaded, where: str, formats: Formats) -> ExecutorInfo:
        """What the engine is told; ``where`` it runs is for people."""
        return ExecutorInfo(
            model=loaded.name,
            vocab_size=loaded.limits.vocab_size,
            max_context=loaded.limits.max_context,
            end_token_ids=loaded.end_token_ids,
            num_blocks=loaded.limits.num_blocks,
            memory=loaded.ledger.columns(),
            detail=f"{where}, {loaded.format}, {formats.describe()}",
        )

    def execute(self, launch: StepLaunch, sample: Sample) -> StepResult:
        """One step.  Raises EngineFault for a launch that does not fit the pool, the vocabulary or itself."""
        if self._loaded is None:
            raise EngineFault("execute() before load()")
        launched, network = time.monotonic(), self._loaded.network
        with torch.inference_mode():
            if launch.copies:
                network.copy_blocks(launch.copies)
            batch = build(launch, self._loaded.limits)
            self.bring_ids(launch, batch)
            logits = network.forward(batch) if batch.num_tokens else None
            drawn = SampleOutput([], []) if logits is None else sample(logits, launch.sampling)
        return self.result(launch.step, batch, drawn, launched, time.monotonic())

    def bring_ids(self, launch: StepLaunch, batch: StepBatch) -> None:
        """The ids that ``batch`` misses, right before it is computed.  Raises EngineFault."""
        assert self._loaded is not None
        for rid in launch.released:
            self._last_ids.pop(rid, None)
        fill(batch, self._last_ids, self._loaded.limits)
        # Should this step fail, its requests end, and a step planned ahead computes something for nobody.
        self._last_ids.update(dict.fromkeys(batch.sampling_rids, 0))

    def result(self, step: int, batch: StepBatch, drawn: SampleOutput, launched: float, finished: float) -> StepResult:
        """Of a step that is over; keeps the ids.  Raises EngineFault for other than one id a row."""
        rids = batch.sampling_rids
        if len(drawn.token_ids) != len(rids):
            raise EngineFault(f"the sampler drew {len(drawn.token_ids)} ids for {len(rids)} rows")
        self._last_ids.update(zip(rids, drawn.token_ids, strict=True))
        return step_result(step, rids, drawn, launched, finished)

    def close(self) -> None:
        """Free weights and pool."""
        self._loaded = None
        self._last_ids.clear()


def step_result(step: int, rids: tuple[str, ...], drawn: SampleOutput, launched: float, finished: float) -> StepResult:
    """``drawn`` has one id for each of ``rids``."""
    failed = tuple([(rids[row], why) for row, why in drawn.failed])
    return StepResult(step, rids, tuple(drawn.token_ids), failed, launched, finished)


@hookimpl
def register_executors(register: Register) -> None:
    """Offer this executor as ``executor.use = "torch"``."""
    register("torch", TorchExecutor)
