"""Finds plugins by name and checks each completely when it registers, so that no shape error is left for run time.

A name in ``plugins.toml`` is a built-in (a module of that name in the slot's folder), ``package.module:Class``, or an
entry point in the group ``mainspring``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

import pluggy
import structlog

from . import hookspecs
from .config import check_options
from .edge import Edge
from .errors import ConfigError, MainspringError, PluginError, nearest
from .policy import API_LEVELS, Allocator, Executor, Rekey, Sampler, SchedulerPolicy

log = structlog.get_logger("mainspring.plugins")
ROOT = __name__.rpartition(".core.")[0]


class Slot(NamedTuple):
    """Where a slot's built-ins live, its registration hook, the contract its factories meet, and what these take."""

    folder: str
    hook: str
    contract: type | None = None
    takes: str = ""


SLOTS = {
    "host": Slot("schedulers.host", "register_hosts"),
    "scheduler": Slot("schedulers", "register_schedulers", SchedulerPolicy, "options context"),
    "wrapper": Slot("schedulers.wrappers", "register_wrappers", SchedulerPolicy, "options context inner"),
    "allocator": Slot("allocators", "register_allocators", Allocator, "options context"),
    "sampler": Slot("samplers", "register_samplers", Sampler, "options context"),
    "executor": Slot("plugins.executors", "register_executors", Executor, "options config"),
    "gateway": Slot("plugins.gateways", "register_gateways", Edge, "options config text"),
    "command": Slot("plugins.cli", "register_commands"),
}
#: The keys of ``plugins.toml`` that are not called after their slot.
KEYS = {"wrapper": "scheduler.wrap", "gateway": "gateways"}


class PluginInfo(NamedTuple):
    """One registered plugin.  ``origin`` is the distribution or module it came from."""

    slot: str
    name: str
    factory: Any
    options: type | None
    origin: str
    version: str


class Registry:
    """All plugins known so far; loading is lazy, so an installed plugin that nobody selected cannot break a start."""

    def __init__(self) -> None:
        self.plugins: dict[tuple[str, str], PluginInfo] = {}
        self.manager = pluggy.PluginManager(hookspecs.PROJECT)
        self.manager.add_hookspecs(hookspecs)
        self._origin = ("", "")
        for slot, (_, hook, *_) in SLOTS.items():
            getattr(self.manager.hook, hook).call_historic(kwargs={"register": self._register(slot)})

    def _register(self, slot: str) -> hookspecs.Register:
        def register(name: str, factory: Any, options: type | None = None) -> None:
            origin, version = self._origin
            where = f"{slot} {name!r} from {origin} {version}".rstrip()
            if (known := self.plugins.get((slot, name))) is not None and known.factory is not factory:
                raise PluginError(f"{where}: the name is taken by {known.origin} {known.version}".rstrip())
            if contract := SLOTS[slot].contract:
                verify(where, contract, factory, SLOTS[slot].takes)
            self.plugins[slot, name] = PluginInfo(slot, name, factory, options, origin, version)

        return register

    def add(self, module: Any, origin: str, version: str = "") -> None:
        """Register ``module`` (anything with hookimpls).  Raises PluginError naming the plugin and the misfit."""
        if self.manager.is_registered(module):
            return
        self._origin = origin, version
        try:
            self.manager.register(module)
            self.manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"{origin}: {error}") from error

    def resolve(self, slot: str, use: str) -> PluginInfo:
        """The plugin called ``use``.  Raises ConfigError (no such name) or PluginError (selected, but broken)."""
        if ":" in use:
            self._from_path(slot, use)
        else:
            self._from_folder(slot, use)
            self._from_entry_points({use}, (slot, use) in self.plugins)
            if (slot, use) not in self.plugins:
                known = {info.name: info for info in Registry().available(slot)}  # whose other hooks stay out
                if use not in known:
                    raise ConfigError(f"{key_of(slot)} = {use!r}: there is no such {slot}{nearest(use, known)}")
                self.plugins[slot, use] = known[use]
        return self.plugins[slot, use]

    def make(
        self, slot: str, use: str, options: Mapping[str, Any], *arguments: Any, where: str = "plugins.toml"
    ) -> Any:
        """Build the plugin ``use`` from checked ``options`` and the slot's own arguments."""
        info = self.resolve(slot, use)
        return info.factory(check_options(options, info.options, key_of(slot, "options"), where), *arguments)

    def available(self, slot: str) -> list[PluginInfo]:
        """Everything that could fill ``slot``; what cannot be loaded is logged and left out."""
        folder = importlib.import_module(f"{ROOT}.{SLOTS[slot].folder}")
        for module in pkgutil.iter_modules(folder.__path__):
            if not module.ispkg:
                try:
                    self._from_folder(slot, module.name)
                except PluginError as error:
                    log.warning("plugin_ignored", plugin=module.name, origin=ROOT, reason=str(error))
        self._from_entry_points(None)
        return sorted((info for key, info in self.plugins.items() if key[0] == slot), key=lambda info: info.name)

    def _from_path(self, slot: str, use: str) -> None:
        module_name, _, attribute = use.partition(":")
        try:
            factory = getattr(importlib.import_module(module_name), attribute)
        except (Exception, SystemExit) as error:
            raise PluginError(f"{key_of(slot)} = {use!r}: cannot be loaded: {type(error).__name__}: {error}") from error
        self._origin = module_name, ""
        self._register(slot)(use, factory, getattr(factory, "Options", None))

    def _from_folder(self, slot: str, name: str) -> None:
        path = f"{ROOT}.{SLOTS[slot].folder}.{name}"
        if not name.isidentifier() or importlib.util.find_spec(path) is None:
            return
        try:
            self.add(importlib.import_module(path), ROOT)
        except ImportError as error:
            raise PluginError(f"{slot} {name!r} cannot be imported: {error}") from error

    def _from_entry_points(self, names: set[str] | None, found: bool = False) -> None:
        """Load entry points: the named ones must load; of all others (``None``), or if what bears the name has been
        ``found``, one that cannot be loaded is only logged."""
        for point, origin, version in _entry_points():
            if names is not None and point.name not in names:
                continue
            try:
                self.add(point.load(), origin, version)
            except (Exception, SystemExit) as error:
                if names is None or (found and not isinstance(error, MainspringError)):
                    log.warning("plugin_ignored", plugin=point.name, origin=origin, reason=str(error))
                elif isinstance(error, MainspringError):
                    raise
                else:
                    raise PluginError(f"plugin {point.name!r} of {origin}: {type(error).__name__}: {error}") from error


def _entry_points() -> Iterator[tuple[importlib.metadata.EntryPoint, str, str]]:
    """(entry point, distribution, version) of our group; a damaged distribution is logged and passed over."""
    for found in importlib.metadata.distributions():
        try:
            yield from [
                (point, found.name, found.version) for point in found.entry_points.select(group=hookspecs.PROJECT)
            ]
        except Exception as error:  # noqa: BLE001 - whatever its metadata make the reader raise
            log.warning("distribution_ignored", where=str(getattr(found, "_path", found)), reason=str(error))


def key_of(slot: str, part: str = "use") -> str:
    """The key of ``plugins.toml`` that names a slot's plugin, or has its ``options``."""
    return KEYS.get(slot, f"{slot}.{part}")


def verify(where: str, contract: type, factory: Any, takes: str) -> None:
    """Check a factory against its contract: API level, arguments, every member present and callable as promised."""

    def expect(met: bool, rule: str) -> None:
        if not met:
            raise PluginError(f"{where}: {rule}")

    level, policy = getattr(factory, "api_level", None), contract is SchedulerPolicy
    known = contract is Executor or (type(level) is int and level in API_LEVELS)
    expect(known, f"has api_level {level!r}, this kernel runs {sorted(API_LEVELS)}")
    subclass = inspect.isclass(factory) and issubclass(factory, SchedulerPolicy)
    expect(subclass or not policy, "must be a subclass of core.policy.SchedulerPolicy")
    hooks = {name: value for name, value in vars(contract).items() if inspect.isfunction(value) and name[0] != "_"}
    for hook, promised in (hooks | {"its factory": takes}).items():
        wanted = promised.split() if isinstance(promised, str) else list(inspect.signature(promised).parameters)
        method: Any = factory if isinstance(promised, str) else getattr(factory, hook, None)
        expect(callable(method), f"lacks {hook}({', '.join(wanted)})")
        try:
            inspect.signature(method).bind(*wanted)
        except TypeError as error:
            raise PluginError(f"{where}: {hook} must take ({', '.join(wanted)}): {error}") from error
        expect(_waits(method) == _waits(promised), f"{hook} must {'not ' * _waits(method)}be async")
    if policy:
        rekey = factory.rekey
        expect(rekey in get_args(Rekey), f"rekey = {rekey!r} is not known{nearest(str(rekey), get_args(Rekey))}")
        for name, value in vars(factory).items():
            if inspect.isfunction(value) and name[0] != "_" and name not in hooks:
                close = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
                expect(not close, f"{name} is not a hook; did you mean {''.join(close)!r}?")


def _waits(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
