"""``pytest --policy``: what is collected, what is said, and what is refused."""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.plugins.testing.pytest_plugin import make_trial, parse_options

HERE = Path(__file__).parent
PLUGIN = "mainspring.plugins.testing.pytest_plugin"
INSTALLED = any(point.value == PLUGIN for point in importlib.metadata.entry_points(group="pytest11"))


def run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a folder of its own, with the wrong policies of these tests on the path."""
    load = () if INSTALLED else ("-p", PLUGIN)
    command = [sys.executable, "-m", "pytest", *load, "-p", "no:cacheprovider", "--policy-profile", "fast", *arguments]
    paths = f"pythonpath={HERE}"
    return subprocess.run([*command, "-o", paths], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n", encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_without_paths_only_the_laws_run(folder: Path) -> None:
    done = run(folder, "--policy", "fcfs", "--collect-only", "-q")
    assert "fcfs::token_budget" in done.stdout
    assert "fcfs::claim:arrival_order" in done.stdout
    assert "test_mine" not in done.stdout


@pytest.mark.slow
def test_with_a_path_its_tests_run_too_and_without_a_policy_nothing_changes(folder: Path) -> None:
    done = run(folder, "--policy", "fcfs", "--collect-only", "-q", "test_mine.py")
    assert "fcfs::token_budget" in done.stdout
    assert "test_mine" in done.stdout
    done = run(folder, "--collect-only", "-q")
    assert done.stdout.splitlines()[0] == "test_mine.py::test_mine"
    assert "::token_budget" not in done.stdout


@pytest.mark.slow
def test_a_wrong_policy_fails_with_its_story_and_without_a_traceback(folder: Path) -> None:
    done = run(folder, "--policy", "broken:LeaksTheBudget", "-k", "token_budget or no_duplicates or one_end")
    assert done.returncode == 1
    assert "broken:LeaksTheBudget breaks the law 'token_budget'" in done.stdout
    assert "Traceback" not in done.stdout
    assert "1 failed, 2 passed" in done.stdout


@pytest.mark.slow
def test_a_trial_that_cannot_be_held_is_an_error_of_usage(folder: Path) -> None:
    done = run(folder, "--policy", "fcsf")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "did you mean 'fcfs'" in done.stderr


@pytest.mark.parametrize(
    ("policy", "options", "wrap", "said"),
    [
        ("nowhere:Policy", [], [], "cannot be loaded"),
        ("mainspring.testing:NoSuchPolicy", [], [], "cannot be loaded"),
        ("mainspring.testing:Trial", [], [], "must be a subclass|api_level"),
        ("priority", ["lower_frist=true"], [], "did you mean 'lower_first'"),
        ("priority", ["lower_first=3"], [], "expected `bool`"),
        ("fcfs", [], ["agein"], "did you mean 'ageing'"),
    ],
)
def test_what_cannot_be_tried_is_refused_by_name(policy: str, options: list[str], wrap: list[str], said: str) -> None:
    option = argparse.Namespace(
        policy=policy, policy_options=options, policy_wrap=wrap, policy_profile="fast", policy_golden=None
    )
    with pytest.raises(pytest.UsageError, match=said):
        make_trial(option)


def test_options_are_values_as_in_toml() -> None:
    pairs = ["tickets=3", "name=draw", "shares={a = 0.5}", "on = true"]
    assert parse_options(pairs) == {"tickets": 3, "name": "draw", "shares": {"a": 0.5}, "on": True}
    with pytest.raises(pytest.UsageError, match="expected key=value"):
        parse_options(["tickets"])
