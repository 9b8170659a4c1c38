"""The standard sampler's plan, for executors that draw from the logits themselves where they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # it needs messages, and gpu_check has to run without msgspec
    from .overlap import Sample

#: What a draw says of a row: drawn.  Other states are reasons, see ``StandardPlan.why``.
DRAWN = 0


class StandardPlan(Protocol):
    """``samplers.plan.SamplingPlan``, one entry for each row that samples."""

    @property
    def temperature(self) -> NDArray[np.float32]: ...
    @property
    def top_k(self) -> NDArray[np.int32]: ...
    @property
    def top_p(self) -> NDArray[np.float32]: ...
    @property
    def min_p(self) -> NDArray[np.float32]: ...
    @property
    def uniform(self) -> NDArray[np.float64]: ...
    @property
    def banned_rows(self) -> NDArray[np.int64]: ...
    @property
    def banned_ids(self) -> NDArray[np.int64]: ...
    @property
    def best_only(self) -> bool: ...
    @property
    def standard_run(self) -> Sample | None: ...
    def __len__(self) -> int: ...
    def why(self, state: int) -> str: ...


def can_draw(plan: Any, sample: Sample) -> bool:
    """Whether the standard sampler's arithmetic gives what ``sample(logits, plan)`` would."""
    return getattr(plan, "standard_run", None) == sample and hasattr(plan, "best_only")


def failed(plan: StandardPlan, states: list[int]) -> list[tuple[int, str]]:
    """The rows that cannot be drawn from, with the reason."""
    return [(row, plan.why(state)) for row, state in enumerate(states) if state != DRAWN]
