"""The author's path: ``mainspring new`` writes a package that installs, is found by name, and passes the kit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from mainspring.core.__main__ import main
from mainspring.core.errors import ConfigError
from mainspring.plugins.cli.new import check_name
from mainspring.plugins.scaffold import kinds, render

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lottery_scheduler"
IGNORED = {"__pycache__", ".pytest_cache", ".hypothesis", "dist", "build"}


def files_below(folder: Path) -> dict[Path, str]:
    found = (file for file in sorted(folder.rglob("*")) if file.is_file() and not IGNORED & set(file.parts))
    return {file.relative_to(folder): file.read_text(encoding="utf-8") for file in found}


def test_the_example_is_what_the_command_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "lottery_scheduler"
    assert main(["new", "scheduler", "lottery", "--path", str(folder)]) == 0
    assert files_below(folder) == files_below(EXAMPLE)
    assert str(folder) in capsys.readouterr().out


def test_the_name_goes_everywhere() -> None:
    files = render("scheduler", "round_robin")
    assert Path("src/round_robin_scheduler/policy.py") in files
    assert 'register("round_robin", RoundRobin, Options)' in files[Path("src/round_robin_scheduler/policy.py")]
    assert 'round_robin = "round_robin_scheduler.policy"' in files[Path("pyproject.toml")]
    assert not [path for path, text in files.items() if "${" in text or "lottery_" in text]


def test_there_is_a_template_for_schedulers() -> None:
    assert kinds() == ["scheduler"]


@pytest.mark.parametrize("name", ["Lottery", "2fast", "a-b", "class", "naïve", "", "a b"])
def test_a_name_that_python_could_not_import_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="lower-case letters"):
        check_name("scheduler", name)


def test_a_name_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "scheduler", "fcfs", "--path", str(tmp_path / "x")]) == 2
    assert "there is a scheduler of that name already, from mainspring" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "scheduler", "draw", "--path", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


# --- in a fresh environment ------------------------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path = Path("/")) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with wheels of mainspring and of the example; third parties are seen through a path file."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "third_parties.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    run(*pip, "--no-deps", "--no-build-isolation", "--ignore-installed", ROOT, EXAMPLE)
    return folder


@pytest.mark.slow
def test_the_installed_example_is_found_by_its_name(fresh: Path) -> None:
    listing = json.loads(run(fresh / "bin" / "mainspring", "plugins", "--json", "--set", "scheduler.use=lottery"))
    (lottery,) = [plugin for plugin in listing["slots"]["scheduler"] if plugin["name"] == "lottery"]
    assert (lottery["active"], lottery["origin"], lottery["api_level"]) == (True, "lottery-scheduler", 1)
    assert set(lottery["options"]) == {"tickets", "default_tickets"}


@pytest.mark.slow
def test_its_own_tests_pass_there(fresh: Path) -> None:
    out = run(fresh / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests", cwd=fresh)
    assert "4 passed" in out


@pytest.mark.slow
def test_it_passes_the_kit_there_by_name(fresh: Path) -> None:
    """The plugin of pytest comes with the wheel; without paths only the laws run."""
    arguments = ("--policy", "lottery", "--policy-options", "default_tickets=5", "--policy-profile", "fast")
    out = run(fresh / "bin" / "python", "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments, cwd=fresh)
    assert "lottery::claim:work_conserving PASSED" in out
    assert "lottery::state_machine PASSED" in out
    assert "one decision with 64 running" in out
