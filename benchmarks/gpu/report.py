"""What a run found: printed line by line, kept for the JSON at the end."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Report:
    """Results of a run that should take ``seconds``.  ``failed`` names what was wrong."""

    def __init__(self, seconds: float) -> None:
        self.results: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self._begin, self._seconds = time.monotonic(), seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    def time_for(self, name: str, seconds: float) -> bool:
        """Whether ``seconds`` more are left; if not, says that ``name`` was left out."""
        if self.elapsed + seconds <= self._seconds:
            return True
        self._keep(name, skipped=f"needs about {seconds:.0f} s and {self._seconds - self.elapsed:.0f} s are left")
        return False

    def check(self, name: str, error: float, bound: float) -> None:
        """A result that is right if ``error`` is at most ``bound``; not a number is wrong."""
        right = bool(error <= bound)
        if not right:
            self.failed.append(name)
        self._keep(name, error=float(error), bound=bound, ok=right)

    def figure(self, name: str, value: float, unit: str, **more: Any) -> None:
        """A measurement."""
        self._keep(name, value=value, unit=unit, **more)

    def note(self, name: str, text: str) -> None:
        """A fact about the machine or the run."""
        self._keep(name, text=text)

    def as_json(self) -> str:
        """All results; a number that is not finite, which JSON has no word for, as text."""
        return json.dumps([{key: _written(value) for key, value in one.items()} for one in self.results], indent=1)

    def _keep(self, name: str, **fields: Any) -> None:
        shown = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in fields.items()
        )
        print(f"{self.elapsed:6.1f} s  {name}: {shown}", flush=True)
        self.results.append({"name": name, "at_s": round(self.elapsed, 1), **fields})


def _written(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def module_at(path: str) -> Any:
    """A Python file of this repository as a module, whatever else is called ``tests`` on this machine."""
    name = "checked_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
