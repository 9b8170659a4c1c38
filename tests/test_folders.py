"""Files of the user go where the XDG base directories say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.plugins.folders import cache_folder, journal_folder, state_folder
from mainspring.plugins.settings import JournalConfig


def test_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    assert state_folder() == tmp_path / "s" / "mainspring"
    assert cache_folder() == tmp_path / "c" / "mainspring"


@pytest.mark.parametrize("value", [None, "", "relative/path"])
def test_the_home_folder_stands_in(value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable) if value is None else monkeypatch.setenv(variable, value)
    assert state_folder() == tmp_path / ".local" / "state" / "mainspring"
    assert cache_folder() == tmp_path / ".cache" / "mainspring"


def test_the_journal_is_where_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert journal_folder(JournalConfig(path="auto")) == state_folder() / "journal"
    assert journal_folder(JournalConfig(path="")) is None
    assert journal_folder(JournalConfig(path="~/j")) == tmp_path / "j"
