"""``executor.use = "auto"``: the best executor that this machine can run, and why it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import Executor, ExecutorInfo, SampleOutput
from ..settings import Config
from .packed_linear import has_bf16_instructions
from .torch import TorchExecutor


def choose(config: Config) -> tuple[Executor, str]:
    """The executor, and one sentence why."""
    why = "bf16 instructions found" if has_bf16_instructions() else "no bf16 instructions: float32 is faster and exact"
    return TorchExecutor(None, config), f"auto chose torch ({why})"


class AutoExecutor:
    """Delegates to what ``choose`` picked; its reason is in ``ExecutorInfo.detail``."""

    def __init__(self, options: Any, config: Config) -> None:
        self._inner, self._why = choose(config)

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """See ``Executor.load``."""
        progress(self._why)
        info = self._inner.load(progress)
        return info._replace(detail=f"{self._why}; {info.detail}")

    def execute(self, launch: StepLaunch, sample: Callable[[Any, Any], SampleOutput]) -> StepResult:
        """See ``Executor.execute``."""
        return self._inner.execute(launch, sample)

    def close(self) -> None:
        """See ``Executor.close``."""
        self._inner.close()


@hookimpl
def register_executors(register: Register) -> None:
    """Offer this executor as ``executor.use = "auto"``."""
    register("auto", AutoExecutor)
