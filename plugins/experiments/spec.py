"""The experiment file: one TOML, checked completely before anything runs.

Whatever is wrong is refused with the file, the key, the value, the nearest valid one and what to do about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ...core.config import NonNegFloat, NonNegInt, PosFloat, PosInt, Section, build
from ...core.errors import ConfigError, nearest
from ..config_file import read_toml
from ..traces.formats import FORMATS
from ..workloads.scenario import NAMES
from .quality import QUALITY, direction_of

#: Fewer pairs than this give no interval that anybody should read.
FEWEST_PAIRS = 5
Share = Annotated[float, msgspec.Meta(ge=0, lt=1)]
Level = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class WorkloadSpec(Section, frozen=True):
    """A scenario by name, windows of a recorded trace, or prompts of text for the real model."""

    scenario: str = ""  # S1 to S10
    size: Literal["tiny", "full"] = "tiny"
    options: dict[str, Any] = {}  # of the scenario's generator, or of the trace's reader
    trace: str = ""  # a file; relative to the experiment file
    format: str = "canonical"  # of the trace
    window_requests: NonNegInt = 0  # requests of one window: pair i plays window i
    kv_tokens: NonNegInt = 0  # KV memory for a trace
    max_output: NonNegInt = 0  # max_tokens that policies see of a trace's requests
    prompts: tuple[str, ...] = ()  # text, taken in turns; live only
    chat: bool = False  # prompts go through the model's chat template
    num_requests: NonNegInt = 0  # with prompts
    output_tokens: PosInt = 64  # with prompts
    forced: bool = True  # outputs are as long as the workload says, whatever the model would like


class LoadSpec(Section, frozen=True):
    """Either shares of the baseline's measured capacity, or absolute rates.  ``inf``: everything at once."""

    rho: tuple[PosFloat, ...] = ()
    rate: tuple[float, ...] = ()  # requests (sessions, trees) per second


class StopSpec(Section, frozen=True):
    """``looks``: numbers of pairs after which the primary metric may end a load level early.  Every look, the last
    included, then uses the confidence 1 - alpha / number of looks (Bonferroni), so looking costs no error."""

    looks: tuple[PosInt, ...] = ()
    wall_s: NonNegFloat = 0.0  # no run is started after so many seconds; 0: no limit


class LiveSpec(Section, frozen=True):
    """How ``serve --experiment`` compares arms on real traffic."""

    mode: Literal["shadow", "switchback", "replicas"] = "switchback"
    window_s: PosFloat = 60.0
    key: Literal["request", "tenant"] = "request"  # what a replica's bucket is made of


class ExperimentSpec(Section, frozen=True):
    """Everything in the file; ``arms`` and ``config`` are trees of ``plugins.toml``."""

    name: str = ""
    question: str = ""
    baseline: str = ""
    primary: str = ""
    metrics: tuple[str, ...] = ()  # reported besides the usual ones
    guards: dict[str, NonNegFloat] = {}  # metric -> margin, 0.05 meaning 5 %; without any: those of the scenario
    clock: Literal["sim", "live"] = "sim"
    seeds: PosInt | tuple[int, ...] = 10
    confidence: Level = 0.95
    warmup: Share = 0.1  # of the arrivals, by time: played and not measured
    step_time: str = ""  # sim: a file of coefficients
    noise_sigma: NonNegFloat = 0.0  # sim: lognormal noise of every step, for robustness
    known_lengths: bool = False  # policies see the true output lengths
    price_per_hour: NonNegFloat = 0.0  # of the machine, in any currency
    workload: WorkloadSpec = WorkloadSpec()
    load: LoadSpec = LoadSpec()
    stop: StopSpec = StopSpec()
    live: LiveSpec = LiveSpec()
    config: dict[str, Any] = {}  # for all arms
    arms: dict[str, dict[str, Any]] = {}

    @property
    def seed_list(self) -> tuple[int, ...]:
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds

    @property
    def others(self) -> tuple[str, ...]:
        """All arms but the baseline."""
        return tuple(name for name in self.arms if name != self.baseline)


class Experiment(msgspec.Struct, frozen=True):
    """A checked file: ``spec`` and where it is."""

    spec: ExperimentSpec
    path: Path

    def error(self, text: str) -> ConfigError:
        return ConfigError(f"{self.path}: {text}")


def read(path: Path, live_traffic: bool = False) -> Experiment:
    """The experiment in ``path``.  Raises ConfigError.

    ``live_traffic``: the requests are those of a server's clients, so no workload is asked for.  The trees of the arms
    are checked by ``arms.make``.
    """
    tree = read_toml(path)
    _check_tables(tree, str(path))
    experiment = Experiment(build(ExperimentSpec, tree, str(path)), path)
    _check_arms(experiment)
    _check_metrics(experiment)
    _check_seeds(experiment)
    if not live_traffic:
        _check_workload(experiment)
    return experiment


def _check_tables(tree: Mapping[str, Any], where: str) -> None:
    """Tables whose keys the writer chooses: here a message can name them."""
    for key, rule, good in (
        ("arms", "a table", _is_table),
        ("guards", "a margin from 0, 0.05 meaning 5 %", _is_margin),
    ):
        table = tree.get(key, {})
        for name, value in table.items() if isinstance(table, Mapping) else ():
            if not good(value):
                raise ConfigError(f"{where}: {key}.{name} = {value!r}: expected {rule}")


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_margin(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def _check_arms(experiment: Experiment) -> None:
    spec = experiment.spec
    if len(spec.arms) < 2:
        raise experiment.error("arms: an experiment needs two, the baseline and another; add [arms.NAME] tables")
    if not all(name.strip() for name in spec.arms):
        raise experiment.error("arms: one has no name; reports call arms by their names")
    if not spec.baseline:
        raise experiment.error(f'baseline: is missing; add baseline = "{next(iter(spec.arms))}" or another arm')
    if spec.baseline not in spec.arms:
        raise experiment.error(f"baseline = {spec.baseline!r}: there is no such arm{nearest(spec.baseline, spec.arms)}")


def _check_metrics(experiment: Experiment) -> None:
    spec = experiment.spec
    if not spec.primary:
        raise experiment.error('primary: is missing; declare the metric that decides, such as primary = "ttft_mean"')
    places = {"primary": (spec.primary,), "metrics": spec.metrics, "guards": tuple(spec.guards)}
    for key, metrics in places.items():
        for metric in metrics:
            try:
                direction_of(metric)
            except ConfigError as error:
                raise experiment.error(f"{key}: {error}") from error


def _check_seeds(experiment: Experiment) -> None:
    spec = experiment.spec
    seeds = spec.seed_list
    if len(seeds) < FEWEST_PAIRS:
        text = f"seeds = {spec.seeds!r}: {len(seeds)} pairs are too few for an interval; use at least {FEWEST_PAIRS}"
        raise experiment.error(text)
    if min(seeds) < 0:
        raise experiment.error(f"seeds = {list(seeds)!r}: seeds are numbers from 0")
    if len(set(seeds)) < len(seeds):
        raise experiment.error(f"seeds = {list(seeds)!r}: one stands there twice; a pair played twice proves nothing")
    if any(look < FEWEST_PAIRS or look >= len(seeds) for look in spec.stop.looks):
        text = f"stop.looks = {list(spec.stop.looks)!r}: looks lie from {FEWEST_PAIRS} to {len(seeds) - 1} pairs"
        raise experiment.error(text)


def _check_workload(experiment: Experiment) -> None:
    spec, work = experiment.spec, experiment.spec.workload
    kinds = [key for key in ("scenario", "trace", "prompts") if getattr(work, key)]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "nothing"
        raise experiment.error(f"workload: names {found}; give exactly one of scenario, trace and prompts")
    if work.scenario and work.scenario not in NAMES:
        raise experiment.error(f"workload.scenario = {work.scenario!r}: unknown{nearest(work.scenario, NAMES)}")
    if work.trace:
        if work.format not in FORMATS:
            raise experiment.error(f"workload.format = {work.format!r}: unknown{nearest(work.format, FORMATS)}")
        for key in ("kv_tokens", "max_output", "window_requests"):
            if not getattr(work, key):
                raise experiment.error(f"workload.{key}: is missing; a trace does not say it")
    if work.prompts and spec.clock == "sim":
        raise experiment.error('workload.prompts: text needs the model; set clock = "live"')
    if work.prompts and not work.num_requests:
        raise experiment.error("workload.num_requests: is missing; say how many requests the prompts make")
    if spec.clock == "sim" and not spec.step_time:
        raise experiment.error(
            'step_time: is missing; name a file of coefficients, such as one made by "mainspring calibrate"'
        )
    if bool(spec.load.rho) == bool(spec.load.rate):
        raise experiment.error("load: give rho (shares of the baseline's capacity) or rate (requests per second)")
    if not work.prompts and (text_only := sorted(QUALITY.keys() & {spec.primary, *spec.metrics, *spec.guards})):
        raise experiment.error(f"metrics: {text_only[0]}: needs workload.prompts; other outputs are made up")
    for key, levels in (("rho", spec.load.rho), ("rate", spec.load.rate)):
        if len({f"{level:g}" for level in levels}) < len(levels):
            raise experiment.error(f"load.{key} = {list(levels)!r}: one stands there twice, to six digits")
    if any(not rate > 0 for rate in spec.load.rate):
        raise experiment.error(f"load.rate = {list(spec.load.rate)!r}: rates are above 0; inf means all at once")
