"""Which plugins a configuration selects: the one place that knows where ``plugins.toml`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..core.config import check_options
from ..core.policy import AllocatorContext
from ..core.registry import Registry, key_of
from .executors.memory import asked_bytes
from .settings import Config

#: Blocks of the pool that an allocator is tried with at most: the real one may be as large as memory.
_TRIED_BLOCKS = 1024


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


def check(choice: Choice, config: Config, registry: Registry, where: str) -> None:
    """Raise for a plugin that cannot be had, or that does not accept its options or settings; loads no model.

    What is wrong should be said now and not when gigabytes have been read: so an allocator is built once to try it.
    """
    info = registry.resolve(choice.slot, choice.use)
    check_options(choice.options, info.options, key_of(choice.slot, "options"), where)
    if choice.slot == "allocator":
        own = config.allocator
        num_blocks = min(own.num_blocks or _TRIED_BLOCKS, _TRIED_BLOCKS)
        pool = AllocatorContext(num_blocks, own.block_size, own.evict, own.max_idle_s)
        registry.make("allocator", choice.use, choice.options, pool, where=where)
    elif choice.slot == "executor":
        asked_bytes(config.executor.memory)
