"""Where files of the user live: journals in the state folder, compiled kernels and the like in the cache folder.

They follow the XDG base directories; a relative value there is ignored, as that standard asks.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..core.errors import ConfigError
from .settings import JournalConfig

_NAME = "mainspring"


def state_folder() -> Path:
    """Folder for what should outlive a restart.  Not created here."""
    return _base("XDG_STATE_HOME", ".local/state") / _NAME


def cache_folder() -> Path:
    """Folder for what can be made again: kernels, converted weights.  Not created here."""
    return _base("XDG_CACHE_HOME", ".cache") / _NAME


def journal_folder(config: JournalConfig) -> Path | None:
    """Where the journal's files go by ``journal.path``; None if it is kept in memory only."""
    if config.path == "auto":
        return state_folder() / "journal"
    return Path(config.path).expanduser() if config.path else None


def make_writable(folder: Path, option: str) -> None:
    """Make ``folder`` and try to write there, before anything runs.  Raises ConfigError that names the ``option``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"{option} {folder}: cannot be written: {error.strerror or error}") from error


def _base(variable: str, default: str) -> Path:
    path = Path(os.environ.get(variable, ""))
    return path if path.is_absolute() else Path.home() / default
