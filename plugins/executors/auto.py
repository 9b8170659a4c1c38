"""``executor.use = "auto"``: the best executor that this machine can run, and why it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...core.errors import EngineFault
from ...core.hookspecs import Register, hookimpl
from ...core.messages import StepLaunch, StepResult
from ...core.policy import Executor, ExecutorInfo
from ..models.checkpoint import open_model
from ..settings import Config
from . import overlap
from .cupy import CupyExecutor, model_trouble
from .cupy_device import device_trouble
from .native import NativeExecutor, native_trouble
from .overlap import Pending, Sample
from .torch import TorchExecutor


def choose(config: Config) -> tuple[Executor, str]:
    """The executor, and one sentence why.  Raises ConfigError for a model that cannot be opened."""
    model = open_model(config.model.path)
    no_device = device_trouble() or model_trouble(model)
    if no_device is None:
        return CupyExecutor(None, config), f"auto chose cupy ({torch.cuda.get_device_name(0)})"
    no_kernels = native_trouble(model)
    if no_kernels is None:
        return NativeExecutor(None, config, model), f"auto chose native (not cupy: {no_device})"
    return TorchExecutor(None, config, model), f"auto chose torch (not native: {no_kernels}; not cupy: {no_device})"


class AutoExecutor:
    """Delegates to what ``choose`` picked; its reason is in ``ExecutorInfo.detail``."""

    def __init__(self, options: Any, config: Config) -> None:
        self._config = config
        self._inner: Executor | None = None

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        """See ``Executor.load``."""
        self._inner, why = choose(self._config)
        progress(why)
        info = self._inner.load(progress)
        return info._replace(detail=f"{why}; {info.detail}")

    def execute(self, launch: StepLaunch, sample: Sample) -> StepResult:
        """See ``Executor.execute``."""
        return overlap.result_of(self.begin(launch, sample, alone=True))

    def begin(self, launch: StepLaunch, sample: Sample, alone: bool = False) -> StepResult | Pending:
        """See ``overlap.begin``."""
        if self._inner is None:
            raise EngineFault("execute() before load()")
        return overlap.begin(self._inner, launch, sample, alone)

    def begins_at_once(self, launch: StepLaunch, sample: Sample) -> bool:
        """See ``overlap.begins_at_once``."""
        return self._inner is not None and overlap.begins_at_once(self._inner, launch, sample)

    def close(self) -> None:
        """See ``Executor.close``."""
        if self._inner is not None:
            self._inner.close()


@hookimpl
def register_executors(register: Register) -> None:
    """Offer this executor as ``executor.use = "auto"``."""
    register("auto", AutoExecutor)
