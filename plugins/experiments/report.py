"""What an experiment found, as data: ``report.json`` is exactly this."""

from __future__ import annotations

import msgspec

SCHEMA = 1


class Effect(msgspec.Struct, frozen=True):
    """One metric of one arm against the baseline at one load level.

    ``base`` and ``other`` are means over runs.  ``change``, ``low``, ``high`` are a ratio (other / baseline) or a
    difference by ``scale``; ``values`` one per pair, on the scale of ``log`` for ratios.  ``floor`` is the half-width
    of the A/A interval between different seeds on that scale.  ``p`` is corrected unless the metric is the primary.
    """

    metric: str
    direction: str
    verdict: str
    why: str
    base: float | None
    other: float | None
    scale: str = "ratio"
    change: float | None = None
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...] = ()
    p: float | None = None
    p_sign_flip: float | None = None
    floor: float | None = None


class GuardResult(msgspec.Struct, frozen=True):
    """``margin``: a share for ratios, the metric's unit for differences; ``result`` kept, broken or not shown."""

    metric: str
    margin: float
    result: str


class ArmResult(msgspec.Struct, frozen=True):
    """An arm at a load level.  ``checks`` are the failed ones, which refuse verdicts: a late generator those on times,
    any other all of them."""

    arm: str
    pairs: int
    effects: tuple[Effect, ...]
    guards: tuple[GuardResult, ...]
    checks: tuple[str, ...] = ()


class LevelResult(msgspec.Struct, frozen=True):
    """A load level: ``rate`` of arrivals per second (None: all at once); ``means`` of every metric by arm."""

    label: str
    rate: float | None
    pairs: int
    stopped_early: bool
    arms: tuple[ArmResult, ...]
    means: dict[str, dict[str, float | None]]
    measured: int  # requests of one run that are measured
    cautions: tuple[str, ...] = ()
    cost_per_million: dict[str, float] = {}  # by arm, of output tokens


class Report(msgspec.Struct, frozen=True):
    """Everything.  ``machine`` says what it ran on, ``arms`` what each changes."""

    name: str
    question: str
    clock: str
    baseline: str
    primary: str
    confidence: float
    arms: dict[str, dict[str, object]]
    workload: dict[str, object]
    machine: dict[str, str]
    capacity: float | None
    levels: tuple[LevelResult, ...]
    complete: bool
    correctness: str
    finding: str
    version: str
    schema: int = SCHEMA
