"""What executors have in common whose steps are begun and ended apart (``overlap``)."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch

from ...core.errors import EngineFault
from ...core.messages import StepLaunch, StepResult
from ...core.policy import SampleOutput
from ..models.checkpoint import Checkpoint
from ..models.foreign import ForeignFolder
from ..settings import Config
from .batch import StepBatch, build
from .overlap import Sample, result_of
from .standard_plan import StandardPlan, can_draw
from .torch import TorchExecutor, step_result

#: Returns when a step is over, and the moments (clock seconds) at which it began and ended if it knows them.
Wait = Callable[[], tuple[float, float] | None]


class Drawn(Protocol):
    """What a step draws, while it may not have ended."""

    def read(self) -> tuple[list[int], list[tuple[int, str]]]:
        """Once it has: ids, and the rows that cannot be drawn from with the reason."""


class Begun:
    """Implements ``overlap.Pending``.  ``rids`` are those that draw, in order of rows; ``drawn`` None: no row does."""

    def __init__(
        self,
        step: int,
        rids: tuple[str, ...],
        drawn: Drawn | None,
        wait: Wait,
        launched: float,
        before: Begun | None,
    ) -> None:
        """``wait`` returns when the step is over.  ``launched`` in seconds.  ``before``: the last one."""
        self.step, self.rids, self.drawn = step, rids, drawn
        self.launched, self.finished = launched, 0.0
        self._wait, self._before = wait, before
        self._output: SampleOutput | None = None  # once it is over
        self._rows = {rid: row for row, rid in enumerate(rids)}

    def takes(self, missing: Iterable[tuple[int, str]]) -> list[tuple[int, int]]:
        """(token, row of this step) of those tokens of the next step, ``StepBatch.missing``, that this one draws."""
        return [(token, self._rows[rid]) for token, rid in missing if rid in self._rows]

    def read(self) -> SampleOutput:
        """What it draws; waits for its end.  On any thread; two at once find the same."""
        if self._output is None:
            before = self._before
            try:
                moments = self._wait()
            except MemoryError:
                self._output = SampleOutput([0] * len(self.rids), [])  # what follows has nothing to do with it
                raise
            begun = max(self.launched, before.finished) if before else self.launched
            self.launched, self.finished = moments or (begun, time.monotonic())
            self._output = SampleOutput(*self.drawn.read()) if self.drawn else SampleOutput([], [])
            self._before = None
        return self._output

    def result(self) -> StepResult:
        """See ``Pending.result``.  A step that was begun while another ran is launched when that one ends."""
        return step_result(self.step, self.rids, self.read(), self.launched, self.finished)


class OverlappingExecutor(TorchExecutor):
    """Steps of which the next may be begun while one runs, with ids that this one has yet to draw.  One thread at a
    time begins them; any may wait for one."""

    def __init__(self, options: Any, config: Config, opened: Checkpoint | ForeignFolder | None = None) -> None:
        super().__init__(options, config, opened)
        self._older: Begun | None = None  # the step before the last one
        self._before: Begun | None = None  # the last step, whose ids nobody here has seen

    @abstractmethod
    def compute(
        self,
        batch: StepBatch,
        plan: StandardPlan | None,
        before: Any,
        takes: Sequence[tuple[int, int]],
        alone: bool = False,
    ) -> tuple[torch.Tensor | None, Drawn | None, Wait]:
        """Launch a step behind those launched before: its logits, what it draws by ``plan`` (None: nothing), and a
        wait for its end.  ``takes``: (token, row) of the ids that ``before``, the last step's ``Drawn``, holds.
        ``alone``: see ``overlap.begin``."""

    def execute(self, launch: StepLaunch, sample: Sample) -> StepResult:
        """See ``Executor.execute``."""
        return result_of(self.begin(launch, sample, alone=True))

    def begin(self, launch: StepLaunch, sample: Sample, alone: bool = False) -> StepResult | Begun:
        """See ``overlap.begin``.  A step of whose logits only the standard sampler's ids are wanted is launched, no
        more.  Any other sampler is called, and waited for."""
        if self._loaded is None:
            raise EngineFault("execute() before load()")
        before, plan, loaded = self._before, launch.sampling, self._loaded
        self._settle(self._older)
        self._older = None
        if alone:
            self._settle(before)
            before = self._before = None
        launched = time.monotonic()
        if launch.copies:
            with torch.inference_mode():
                loaded.network.copy_blocks(launch.copies)
        batch = build(launch, loaded.limits)
        self.bring_ids(launch, batch)
        if not batch.num_tokens:
            return self.result(launch.step, batch, SampleOutput([], []), launched, time.monotonic())
        takes = before.takes(batch.missing) if before else []
        draws = batch.logits_rows.size > 0 and can_draw(plan, sample)
        last = before.drawn if before and takes else None
        logits, drawn, wait = self.compute(batch, plan if draws else None, last, takes, alone)
        begun = Begun(launch.step, batch.sampling_rids, drawn, wait, launched, before)
        self._older, self._before = before, begun
        if not alone and (draws or logits is None):
            return begun
        try:
            self._settle(before)
            output = begun.read()
            if logits is not None and not draws:
                with torch.inference_mode():
                    output = sample(logits, plan)
        finally:
            self._older = self._before = None
        finished = begun.finished if draws or logits is None else time.monotonic()
        return self.result(launch.step, batch, output, begun.launched, finished)

    def _settle(self, begun: Begun | None) -> None:
        """Keep the ids of a step that is over."""
        if begun is not None:
            ids = begun.read().token_ids
            self._last_ids.update((rid, at) for rid, at in zip(begun.rids, ids, strict=True) if rid in self._last_ids)

    def close(self) -> None:
        """Free weights and pool."""
        super().close()
        self._older = self._before = None
