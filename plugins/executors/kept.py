"""An executor that loads once and outlives the kernels that it serves, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from ...core.messages import StepLaunch, StepResult
from ...core.policy import Executor, ExecutorInfo
from . import overlap
from .overlap import Pending, Sample


class KeptExecutor:
    """Implements ``core.policy.Executor`` around another one; ``end`` is what closes that."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._info: ExecutorInfo | None = None
        self.warm = False

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        if self._info is None:
            self._info = self._inner.load(progress)
        return self._info

    def execute(self, launch: StepLaunch, sample: Sample) -> StepResult:
        return self._inner.execute(launch, sample)

    def begin(self, launch: StepLaunch, sample: Sample, alone: bool = False) -> StepResult | Pending:
        """See ``overlap.begin``."""
        return overlap.begin(self._inner, launch, sample, alone)

    def begins_at_once(self, launch: StepLaunch, sample: Sample) -> bool:
        """See ``overlap.begins_at_once``."""
        return overlap.begins_at_once(self._inner, launch, sample)

    def close(self) -> None:
        """Kept: ``end`` closes it."""

    def end(self) -> None:
        self._inner.close()
