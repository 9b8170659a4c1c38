"""Which plugins a configuration selects: the one place that knows where ``plugins.toml`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..core.config import check_options
from ..core.errors import ConfigError
from ..core.policy import AllocatorContext
from ..core.registry import Registry, key_of
from .choices import check_choices
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
    """Every selected plugin, in the order in which they are built.  Raises ConfigError where one is not named."""
    shadow = config.scheduler.shadow
    if not shadow.use and (shadow.wrap or shadow.options):
        raise ConfigError("scheduler.shadow.use is missing: wrappers or options of a shadow, and no policy")
    wrappers = [_wrapper(entry) for entry in (*config.scheduler.wrap, *shadow.wrap)]
    return [
        Choice("executor", config.executor.use, config.executor.options),
        Choice("allocator", config.allocator.use, config.allocator.options),
        Choice("sampler", config.sampler.use, config.sampler.options),
        Choice("host", "standard", {}),  # the only one there is: no key of plugins.toml changes it
        Choice("scheduler", config.scheduler.use, config.scheduler.options),
        *([Choice("scheduler", shadow.use, shadow.options)] if shadow.use else []),
        *wrappers,
        *(Choice("gateway", name, {}) for name in config.gateways),
    ]


def _wrapper(entry: str | Mapping[str, Any]) -> Choice:
    if isinstance(entry, str):
        return Choice("wrapper", entry, {})
    if not isinstance(use := entry.get("use"), str):
        raise ConfigError(f"scheduler.wrap: {dict(entry)} names no wrapper: its key 'use' is missing or no text")
    return Choice("wrapper", use, {key: value for key, value in entry.items() if key != "use"})


def check(choice: Choice, config: Config, registry: Registry, where: str) -> None:
    """Raise for a plugin that cannot be had, or that does not accept its options or settings; loads no model.

    What is wrong should be said now and not when gigabytes have been read: so an allocator is built once to try it.
    """
    info = registry.resolve(choice.slot, choice.use)
    prefix = key_of(choice.slot, "options")
    if info.options is not None:
        check_choices(info.options, choice.options, f"{prefix}.", where)
    check_options(choice.options, info.options, prefix, where)
    if choice.slot == "allocator":
        own = config.allocator
        num_blocks = min(own.num_blocks or _TRIED_BLOCKS, _TRIED_BLOCKS)
        pool = AllocatorContext(num_blocks, own.block_size, own.evict, own.max_idle_s)
        registry.make("allocator", choice.use, choice.options, pool, where=where)
    elif choice.slot == "executor":
        asked_bytes(config.executor.memory)
