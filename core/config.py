"""What ``plugins.toml`` may say, as frozen structs: an unknown key, type or range is refused and says where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from .errors import ConfigError, nearest

PosInt = Annotated[int, msgspec.Meta(ge=1, le=2**48)]
NonNegInt = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
NonNegFloat = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Tables = TypeVar("Tables", bound="Section")
PosFloat = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Depth = Literal[1, 2, "auto"]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class SchedulerConfig(Section, frozen=True):
    """The host's limits and the policy that fills the slot."""

    use: str = "fcfs"
    token_budget: PosInt = 512  # most tokens computed in one step
    max_running: PosInt = 256  # most requests in one step
    max_waiting: PosInt = 1024  # beyond it a submit is refused with queue_full
    depth: Depth = "auto"  # steps in flight at once; "auto": two while they are short
    max_bypass: NonNegInt = 16  # later requests that may pass one that does not fit, before it blocks the queue
    watermark: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0  # share of blocks kept free on admission
    pause_hold_s: NonNegFloat = 5.0  # a paused request keeps its blocks for so long, then it is preempted
    wrap: tuple[str | dict[str, Any], ...] = ()  # wrappers, outermost first: a name, or a table with use and options
    seed: int = 0  # of the policy's generator
    options: dict[str, Any] = {}


class AllocatorConfig(Section, frozen=True):
    use: str = "prefix"
    block_size: PosInt = 16  # tokens per block
    num_blocks: NonNegInt = 0  # 0: as many as executor.memory holds
    evict: str = "lru"
    max_idle_s: NonNegFloat = 0.0  # cached blocks unused for longer are dropped; 0: never
    options: dict[str, Any] = {}


class SamplerConfig(Section, frozen=True):
    use: str = "standard"
    options: dict[str, Any] = {}


class ExecutorConfig(Section, frozen=True):
    use: str = "auto"
    weights: str = "auto"  # storage format of the weights
    dtype: str = "auto"  # activations
    kv_dtype: str = "auto"
    threads: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 0  # 0: the cores this process may use
    memory: str | PosInt = "auto"  # weights + workspace + KV, e.g. "4GiB", or bytes
    stall_s: PosFloat = 120.0  # no result within this: the executor counts as hung
    restarts: NonNegInt = 1  # restarts allowed ...
    restart_window_s: PosFloat = 5.0  # ... within this, then the process ends with exit code 70
    options: dict[str, Any] = {}


class Config(Section, frozen=True):
    """The tables the kernel reads; ``plugins.settings.Config`` adds those of the edges."""

    gateways: tuple[str, ...] = ("ws",)
    paranoid: bool = False  # check every actor's books after every message
    scheduler: SchedulerConfig = SchedulerConfig()
    allocator: AllocatorConfig = AllocatorConfig()
    sampler: SamplerConfig = SamplerConfig()
    executor: ExecutorConfig = ExecutorConfig()


def build(kind: type[Tables], tree: Mapping[str, Any], where: str) -> Tables:
    """Check a plain tree and make the frozen ``kind``; ``where`` names the source in errors.  Raises ConfigError."""
    _check_keys(tree, kind, "", where)
    made: Tables = convert(tree, kind, "", where)
    return made


def convert(tree: Any, kind: Any, prefix: str, where: str) -> Any:
    """``msgspec.convert`` whose errors name ``where``, the dotted key, the value and the rule.  Raises ConfigError."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at `$")
        key = path.rstrip("`").lstrip(".")
        value: Any = tree
        for part in key.split(".") if key else ():
            value = value.get(part.split("[")[0]) if isinstance(value, Mapping) else value
        raise ConfigError(f"{where}: {prefix}{key} = {value!r}: {rule[:1].lower()}{rule[1:]}") from error


def check_options(options: Mapping[str, Any], kind: type | None, prefix: str, where: str) -> Any:
    """Options of a plugin -> its options type (a dataclass or Struct), as strict as the rest.  Raises ConfigError."""
    if kind is None:
        if options:
            raise ConfigError(f"{where}: {prefix}.{next(iter(options))}: this plugin has no options")
        return None
    valid = _fields(kind)
    for key, value in options.items():
        _known(key, value, valid, prefix + ".", where)
    return convert(dict(options), kind, prefix + ".", where)


def _known(key: str, value: Any, valid: list[str], prefix: str, where: str) -> None:
    if key not in valid:
        raise ConfigError(f"{where}: unknown key {prefix}{key} = {value!r}{nearest(key, valid)}")


def _fields(kind: Any) -> list[str]:
    return list(getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__)


def _check_keys(tree: Mapping[str, Any], kind: Any, prefix: str, where: str) -> None:
    valid = _fields(kind)
    for key, value in tree.items():
        _known(key, value, valid, prefix, where)
        default = getattr(kind(), key)
        if isinstance(default, Section) and isinstance(value, Mapping):
            _check_keys(value, type(default), f"{prefix}{key}.", where)
