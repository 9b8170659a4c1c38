"""The wheel is whole: built from the sdist, where no links exist, it installs and imports outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("core", "plugins", "schedulers", "allocators", "samplers")

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> str:
    """Run from the root of the file system, so that nothing of the checkout is found by accident."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkout -> sdist -> wheel, with the build backend that is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    code = "import os, sys, hatchling.build as backend; os.chdir(sys.argv[1]); print(backend.build_sdist(sys.argv[2]))"
    sdist = folder / run(sys.executable, "-c", code, ROOT, folder).strip()
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, sdist)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; third parties are seen through a path file, not installed again."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "third_parties.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_wheel_has_every_file_of_the_five_folders_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"mainspring/{file.relative_to(ROOT)}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    package = ROOT / "src" / "mainspring"
    expected |= {f"mainspring/{file.name}" for file in package.iterdir() if file.is_file()}
    assert {name for name in names(wheel) if ".dist-info/" not in name} == expected


def test_the_packaged_configuration_is_the_real_file_and_not_a_link(wheel: Path) -> None:
    text = zipfile.ZipFile(wheel).read("mainspring/plugins.toml").decode()
    assert text == (ROOT / "plugins.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["scheduler"]["use"]


def test_licence_and_marker_of_types_are_there(wheel: Path) -> None:
    found = names(wheel)
    assert "mainspring/py.typed" in found
    for name in ("LICENSE", "NOTICE"):
        assert any(entry.endswith(f".dist-info/licenses/{name}") for entry in found)


def test_every_module_imports_from_the_wheel(wheel: Path, installed: Path) -> None:
    modules = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names(wheel)
        if name.endswith(".py") and not name.endswith("__main__.py")
    )
    code = "import importlib, sys\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    files = run(installed / "bin" / "python", "-c", code, *modules).splitlines()
    assert len(files) == len(modules)
    assert all(Path(file).is_relative_to(installed) for file in files), files


def test_the_command_works_from_anywhere(installed: Path) -> None:
    version = run(installed / "bin" / "mainspring", "--version")
    assert version == run(installed / "bin" / "python", "-m", "mainspring", "--version")
    assert "plugins.toml" in run(installed / "bin" / "mainspring", "config")
