"""Steps that are begun and ended apart: an executor that computes while the next step is brought to it.

``core.policy.Executor`` knows whole steps only.  An executor that also has ``begin`` launches a step and says later
what came out, so that with two steps in flight (``scheduler.depth``) the next one is prepared and launched meanwhile:
by the executor's thread or, where ``begins_at_once`` says so, by the event loop's.
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


def begin(executor: Executor, launch: StepLaunch, sample: Sample, alone: bool = False) -> StepResult | Pending:
    """Begin a step, or compute it where ``executor`` has no ``begin``.  ``alone``: no other is under way, and none
    waits, so that an executor whose device is this machine's cores may as well compute it at once.  Raises like
    ``Executor.execute``."""
    if hasattr(executor, "begin"):
        begun: StepResult | Pending = executor.begin(launch, sample, alone=alone)
        return begun
    return executor.execute(launch, sample)


def begins_at_once(executor: Executor, launch: StepLaunch, sample: Sample) -> bool:
    """Whether ``begin`` waits for nothing and takes less than a millisecond, whichever thread calls it."""
    asked: Callable[[StepLaunch, Sample], bool] | None = getattr(executor, "begins_at_once", None)
    return asked is not None and asked(launch, sample)


def result_of(begun: StepResult | Pending) -> StepResult:
    """Of a step that is over, or after waiting for it."""
    return begun if isinstance(begun, StepResult) else begun.result()
