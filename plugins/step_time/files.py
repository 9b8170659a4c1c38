"""Files of coefficients: the step-time form, how well it predicts, the machine it is of, and what policies cost there.

TOML.  ``load("rtx-pro-6000_llama-3.1-8b")`` finds a ready-made one, ``load("./mine.toml")`` a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...core.config import convert
from ...core.errors import ConfigError, nearest
from ..config_file import read_toml
from .forms import StepForm
from .policy_cost import PolicyCost

FOLDER = Path(__file__).with_name("machines")


class ClassError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative error of held-out steps of one class, as shares of the measured time."""

    steps: int
    median: float
    p90: float


class Validation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the fit was tried on.  ``held_out`` by class: ``prefill``, ``decode``, ``mixed``, ``all``; ``forms``: the
    median held-out error of every form that was tried; ``runs``: relative errors of whole runs, where there are."""

    method: str
    held_out: dict[str, ClassError] = {}
    forms: dict[str, float] = {}
    runs: dict[str, float] = {}


class StepTimeFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in a file.  ``policy_cost`` has one row per policy; ``default`` is for the others."""

    machine: str
    model: str
    source: str
    step: StepForm
    validation: Validation
    policy_cost: dict[str, PolicyCost] = {}
    licence: str = ""
    details: dict[str, str] = {}

    def cost_of(self, policy: str) -> PolicyCost:
        """The formula of ``policy``, or of ``default``, or none at all."""
        return self.policy_cost.get(policy) or self.policy_cost.get("default") or PolicyCost()


def ready_made() -> list[str]:
    """Names of the files that come with the engine."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def load(name: str | Path) -> StepTimeFile:
    """Read a ready-made file by name, or any file by path.  Raises ConfigError naming the file and the key."""
    path = Path(name)
    if path.suffix != ".toml":
        if str(name) not in ready_made():
            raise ConfigError(f"step-time file {str(name)!r}: there is no such file{nearest(str(name), ready_made())}")
        path = FOLDER / f"{name}.toml"
    made: StepTimeFile = convert(read_toml(path), StepTimeFile, "", str(path))
    return made


def dump(made: StepTimeFile) -> str:
    """The file's text."""
    lines: list[str] = []
    _table(msgspec.to_builtins(made), "", lines)
    return "\n".join(lines).strip() + "\n"


def _table(tree: dict[str, Any], prefix: str, lines: list[str]) -> None:
    for key, value in tree.items():
        if not isinstance(value, dict):
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            name = f"{prefix}{_key(key)}"
            if any(not isinstance(inner, dict) for inner in value.values()):
                lines.append(f"\n[{name}]")
            _table(value, f"{name}.", lines)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return msgspec.json.encode(value).decode()
    if isinstance(value, float):
        return f"{value:.6g}" if "." in f"{value:.6g}" or "e" in f"{value:.6g}" else f"{value:.6g}.0"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
