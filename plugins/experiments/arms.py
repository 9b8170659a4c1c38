"""The arms of an experiment as complete configurations, checked like ``plugins.toml`` itself.

Three layers, a later one wins: the limits that belong to the workload, ``[config]``, ``[arms.NAME]``.  KV memory is
the same for all arms in tokens, so a larger block size means fewer blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from ...core.errors import ClientError, ConfigError, MainspringError, nearest
from ...core.messages import SamplingParams
from ...core.policy import Sampler, SamplerContext
from ...core.registry import Registry
from ..chosen import check, chosen
from ..config_file import checked
from ..settings import Config
from ..workloads.scenario import Scenario
from .spec import Experiment

#: In an arm's table beside the keys of ``plugins.toml``: fields of every request.
REQUEST = "request"
#: Tables of an arm that only a model can obey.
NEED_MODEL = frozenset({REQUEST, "sampler", "executor", "model"})
REQUEST_FIELDS = ("temperature", "top_k", "top_p", "min_p")


class Arm(NamedTuple):
    """``sampling`` are fields of every request's ``SamplingParams``."""

    name: str
    config: Config
    sampling: dict[str, Any] = {}


def make(experiment: Experiment, scenario: Scenario | None = None, under: Config | None = None) -> dict[str, Arm]:
    """All arms, by name.  ``under``: a configuration that they all start from (``serve``).  Raises ConfigError."""
    registry = Registry()
    return {name: _arm(experiment, name, scenario, under, registry) for name in experiment.spec.arms}


def _arm(experiment: Experiment, name: str, scenario: Scenario | None, under: Config | None, registry: Registry) -> Arm:
    where = f"{experiment.path}: arms.{name}"
    own = dict(experiment.spec.arms[name])
    simulated = experiment.spec.clock == "sim" and under is None
    if simulated and (idle := sorted(own.keys() & NEED_MODEL)):
        raise ConfigError(f'{where}.{idle[0]}: changes nothing in virtual time, which has no model; set clock = "live"')
    sampling = _sampling(own.pop(REQUEST, {}), where)
    checked(experiment.spec.config, f"{experiment.path}: config")  # each by itself: errors name their table
    checked(own, where)
    tree: dict[str, Any] = msgspec.to_builtins(under) if under else {}
    for layer in (_of_scenario(scenario), experiment.spec.config, own):
        tree = merged(tree, layer)
    config = checked(tree, where)
    if scenario is not None and not config.allocator.num_blocks:
        blocks = max(1, scenario.kv_tokens // config.allocator.block_size)
        allocator = msgspec.structs.replace(config.allocator, num_blocks=blocks)
        config = msgspec.structs.replace(config, allocator=allocator)
    _check_plugins(config, where, registry, {"gateway", "executor", "sampler"} if simulated else {"gateway"})
    _check_sampling(sampling, config, where, registry)
    return Arm(name, config, sampling)


def _of_scenario(scenario: Scenario | None) -> dict[str, Any]:
    if scenario is None:
        return {}
    scheduler = {"max_waiting": 1 << 20, **scenario.scheduler}
    return {"scheduler": scheduler, "allocator": {"block_size": scenario.block_size}}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``base``.  Another ``use`` takes nothing over from the options of the one before."""
    out = dict(base)
    if "use" in over and over["use"] != base.get("use") and "options" in base:
        out["options"] = {}
    for key, value in over.items():
        inner = out.get(key)
        out[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return out


def _sampling(fields: Any, where: str) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}.{REQUEST} = {fields!r}: expected a table")
    for key, value in fields.items():
        if key not in REQUEST_FIELDS:
            raise ConfigError(f"{where}: unknown key {REQUEST}.{key} = {value!r}{nearest(key, REQUEST_FIELDS)}")
    try:
        msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}.{REQUEST}: {error}") from error
    return fields


def _check_sampling(fields: dict[str, Any], config: Config, where: str, registry: Registry) -> None:
    """Ask the arm's sampler now: else it would refuse every request."""
    if not fields:
        return
    context = SamplerContext(vocab_size=1)  # none of these fields is about the vocabulary
    sampler: Sampler = registry.make("sampler", config.sampler.use, config.sampler.options, context, where=where)
    try:
        sampler.validate(SamplingParams(**fields))
    except ClientError as error:
        raise ConfigError(f"{where}.{REQUEST}: {error.message}") from error


def _check_plugins(config: Config, where: str, registry: Registry, unused: Collection[str]) -> None:
    for choice in chosen(config):
        if choice.slot in unused:
            continue
        try:
            check(choice, config, registry, where)
        except MainspringError as error:
            raise ConfigError(str(error) if where in str(error) else f"{where}: {error}") from error
