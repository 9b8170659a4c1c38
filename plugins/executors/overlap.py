"""Steps that are begun and ended apart: an executor whose device computes while the next step is brought to it.

``core.policy.Executor`` knows whole steps only.  An executor that also has ``begin`` launches a step and says later
what came out, so that with two steps in flight (``scheduler.depth``) its thread prepares and launches the next one
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...core.messages import StepLaunch, StepResult
from ...core.policy import Executor, SampleOutput

Sample = Callable[[Any, Any], SampleOutput]


class Pending(Protocol):
    """A step that was launched."""

    def result(self) -> StepResult:
        """Wait for its end; on any thread.  Raises what went wrong in it."""


def begin(executor: Executor, launch: StepLaunch, sample: Sample) -> StepResult | Pending:
    """Launch a step, or compute it where ``executor`` has no ``begin``.  Raises like ``Executor.execute``."""
    run: Callable[[StepLaunch, Sample], StepResult | Pending] = getattr(executor, "begin", executor.execute)
    return run(launch, sample)


def result_of(begun: StepResult | Pending) -> StepResult:
    """Of a step that is over, or after waiting for it."""
    return begun if isinstance(begun, StepResult) else begun.result()
