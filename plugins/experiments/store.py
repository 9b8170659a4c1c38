"""The folder of an experiment: each run's result is written at once and whole, so that a killed run can go on.

``experiment.toml`` is a copy of the file, ``state.json`` says what the runs belong to, ``runs/`` has one file each.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ... import __version__
from ...core.errors import ConfigError
from ..folders import make_writable
from .measure import Summary
from .spec import Experiment


class State(msgspec.Struct, frozen=True):
    """What the results in a folder belong to; ``capacity``: requests per second of the baseline, once measured;
    ``description``: what the runs were played on."""

    fingerprint: str
    version: str
    capacity: float | None = None
    description: dict[str, str] = {}


class Store:
    """Results by (level, role, seed, arm)."""

    def __init__(self, folder: Path, experiment: Experiment, resume: bool, more: bytes = b"") -> None:
        """``more``: further content that the results depend on.  Raises ConfigError for a folder that holds another
        experiment, or this one without ``resume``."""
        self.folder, self._runs = folder, folder / "runs"
        source = experiment.path.read_bytes()
        fingerprint = hashlib.sha256(source + more).hexdigest()
        state = self._read_state()
        if state is None:
            if resume:
                raise ConfigError(f"--out {folder}: there is nothing to resume")
            state = State(fingerprint, __version__)
        elif not resume:
            raise ConfigError(f"--out {folder}: holds results already; --resume goes on with them")
        elif state.fingerprint != fingerprint or state.version != __version__:
            raise ConfigError(
                f"--out {folder}: its results are of another experiment file, step-time file or version "
                f"({state.version}); take another folder"
            )
        make_writable(self._runs, "--out")
        self.state = state
        self.write("experiment.toml", source)
        self._write_state()
        self._known = {path.name for path in self._runs.glob("*.json.gz")}

    def remember_capacity(self, capacity: float) -> None:
        self.state = msgspec.structs.replace(self.state, capacity=capacity)
        self._write_state()

    def describe(self, description: dict[str, str]) -> None:
        """Keep what the clock has to say of itself, for reports that are made later."""
        if description.items() - self.state.description.items():
            merged = {**self.state.description, **description}
            self.state = msgspec.structs.replace(self.state, description=merged)
            self._write_state()

    def has(self, level: str, role: str, seed: int, arm: str) -> bool:
        return _name(level, role, seed, arm) in self._known

    def put(self, summary: Summary) -> None:
        name = _name(summary.level, summary.role, summary.seed, summary.arm)
        self.write(f"runs/{name}", gzip.compress(msgspec.json.encode(summary), 3, mtime=0))
        self._known.add(name)

    def get(self, level: str, role: str, seed: int, arm: str) -> Summary | None:
        """A result, or None."""
        if not self.has(level, role, seed, arm):
            return None
        data = gzip.decompress((self._runs / _name(level, role, seed, arm)).read_bytes())
        return msgspec.json.decode(data, type=Summary)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file so that it is either the old one or whole, also after a crash.  Raises ConfigError."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.part")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            why = error.strerror or error
            raise ConfigError(
                f"--out {path}: cannot be written: {why}; what was played is kept for --resume"
            ) from error
        return path

    def _read_state(self) -> State | None:
        try:
            return msgspec.json.decode((self.folder / "state.json").read_bytes(), type=State)
        except (FileNotFoundError, NotADirectoryError):
            return None  # whether there can be one is seen when it is made
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"--out {self.folder}: state.json cannot be read: {error}") from error

    def _write_state(self) -> None:
        self.write("state.json", msgspec.json.encode(self.state))


def _name(*parts: Any) -> str:
    """A file name that says what is in it, and is safe whatever arms are called."""
    text = "--".join(str(part) for part in parts)
    plain = "".join(char if char.isalnum() or char in "-_." else "_" for char in text)
    return f"{plain[:120]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json.gz"
