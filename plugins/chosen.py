"""Which plugins a configuration selects: the one place that knows where ``plugins.toml`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from .settings import Config


class Choice(NamedTuple):
    """A plugin by slot and name, with the options that it will be built with."""

    slot: str
    use: str
    options: Mapping[str, Any]


def chosen(config: Config) -> list[Choice]:
    """Every selected plugin, in the order in which they are built."""
    shadow = config.scheduler.shadow
    wrap = [*config.scheduler.wrap, *(shadow.wrap if shadow.use else ())]
    wrappers = [{"use": entry} if isinstance(entry, str) else dict(entry) for entry in wrap]
    return [
        Choice("executor", config.executor.use, config.executor.options),
        Choice("allocator", config.allocator.use, config.allocator.options),
        Choice("sampler", config.sampler.use, config.sampler.options),
        Choice("host", "standard", {}),  # the only one there is: no key of plugins.toml changes it
        Choice("scheduler", config.scheduler.use, config.scheduler.options),
        *([Choice("scheduler", shadow.use, shadow.options)] if shadow.use else []),
        *(Choice("wrapper", str(entry.pop("use", "")), entry) for entry in wrappers),
        *(Choice("gateway", name, {}) for name in config.gateways),
    ]
