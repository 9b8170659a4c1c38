"""``mainspring config`` shows what is used (F-02, F-12) and refuses what is not known (F-01)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mainspring.core.__main__ import main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["config", "--json", *arguments]) == 0
    found: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_values_carry_their_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[scheduler]\ntoken_budget = 64\n")
    found = shown(capsys, "--config", str(file), "--set", "server.port=0", "--set", "scheduler.wrap=[]")
    assert found["scheduler.token_budget"] == {"value": 64, "origin": "mine.toml"}
    assert found["server.port"] == {"value": 0, "origin": "--set"}
    assert found["server.host"]["origin"] == "default"


@pytest.mark.parametrize(
    "item", ["journal.prompts=false", "log.prompts=false", "executor.restarts=0", 'journal.path=""']
)
def test_f02_false_zero_and_empty_are_kept(item: str, capsys: pytest.CaptureFixture[str]) -> None:
    key, _, text = item.partition("=")
    assert shown(capsys, "--set", item)[key] == {"value": json.loads(text), "origin": "--set"}


def test_the_file_of_the_current_folder_is_the_default_and_the_packaged_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(capsys)["scheduler.use"] == {"value": "fcfs", "origin": "plugins.toml"}
    (tmp_path / "plugins.toml").write_text("[server]\nport = 9\n")
    found = shown(capsys)
    assert found["server.port"] == {"value": 9, "origin": "plugins.toml"}
    assert found["scheduler.use"]["origin"] == "default"


def test_f01_unknown_key_ends_with_code_2_and_the_nearest_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--set", "server.prot=1"]) == 2
    captured = capsys.readouterr()
    assert "'port'" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--config", str(tmp_path / "nowhere.toml")]) == 2
    assert "nowhere.toml" in capsys.readouterr().err


def test_a_secret_is_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ([], ["--json"]):
        assert main(["config", *form, "--set", "server.admin_key=hunter2"]) == 0
        out = capsys.readouterr().out
        assert "hunter2" not in out
        assert "****" in out


def test_the_table_has_a_line_per_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["KEY", "VALUE", "ORIGIN"]
    assert any(row.split() == ["server.port", "8000", "plugins.toml"] for row in rows)
    assert any(row.split() == ["scheduler.use", '"fcfs"', "plugins.toml"] for row in rows)
    assert any(row.split() == ["paranoid", "false", "default"] for row in rows)
