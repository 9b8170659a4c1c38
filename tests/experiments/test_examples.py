"""Every example is a good experiment: read as it stands, and played in a cut-down version to the end."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.experiments.lab import STEPS

from mainspring.plugins.config_file import flatten, toml
from mainspring.plugins.experiments import arms, spec, workload
from mainspring.plugins.experiments.run import run
from mainspring.plugins.experiments.simulated import SimulatedClock
from mainspring.plugins.workloads.scenario import NAMES

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "examples").glob("s*.toml"))
CLASSICS = sorted((ROOT / "examples" / "classic").glob("*.toml"))
#: What makes a scenario small.
SMALL: dict[str, dict[str, Any]] = {
    "S3": {"documents": 3},
    "S4": {"sessions": 2, "steps": 5},
    "S2": {"num_requests": 30},
    "S10": {"trees": 2},
    "S9": {"num_requests": 16, "batch_requests": 16},
}


def dumped(tree: dict[str, Any]) -> str:
    return "".join(f"{key} = {toml(item)}\n" for key, item in tree.items())


def test_there_is_one_for_every_scenario() -> None:
    named = [spec.read(path).spec.workload.scenario for path in FILES]
    assert sorted(named, key=lambda name: int(name[1:])) == list(NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_good_as_it_stands(path: Path) -> None:
    """Read, its arms made, and its metrics there; the full size too."""
    experiment = spec.read(path)
    scenario = workload.source(experiment)(0)
    assert arms.make(experiment, scenario).keys() == experiment.spec.arms.keys()
    assert experiment.spec.primary in scenario.primary
    assert SimulatedClock(experiment).machine.step.c0 > 0


@pytest.mark.parametrize("path", CLASSICS, ids=lambda path: path.stem)
def test_a_classic_experiment_is_good_as_it_stands(path: Path) -> None:
    """They need the model to be played: `make experiments` does."""
    experiment = spec.read(path)
    made = arms.make(experiment, workload.source(experiment)(0))
    assert experiment.spec.clock == "live" and made.keys() == experiment.spec.arms.keys()
    assert len(CLASSICS) == 7


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_cut_down_version_is_played_to_a_verdict(path: Path, tmp_path: Path) -> None:
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    name = tree["workload"]["scenario"]
    tree |= {"seeds": 5, "step_time": "steps.toml", "load": {"rho": [0.9]}}
    tree["workload"] = {"scenario": name, "size": "tiny", "options": SMALL.get(name, {"num_requests": 20})}
    (tmp_path / "steps.toml").write_text(STEPS, encoding="utf-8")
    (tmp_path / path.name).write_text(dumped(tree), encoding="utf-8")
    report = run(tmp_path / path.name, tmp_path / "out")
    assert report.complete and report.levels[0].pairs == 5
    for arm in report.levels[0].arms:
        assert arm.effects[0].metric == tree["primary"]
        assert all("have not ended" not in check and "Little" not in check for check in arm.checks), arm.checks
        assert len([effect for effect in arm.effects if effect.change is not None]) > 8


def test_the_experiments_of_the_page_are_good(tmp_path: Path) -> None:
    """The TOML blocks of docs/run_an_ab.md, as written."""
    page = (ROOT / "docs" / "run_an_ab.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```toml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.toml"
        path.write_text(block, encoding="utf-8")
        served = "[live]" in block
        experiment = spec.read(path, live_traffic=served)
        assert arms.make(experiment, None if served else workload.source(experiment)(0)).keys() == {
            experiment.spec.baseline,
            *experiment.spec.others,
        }


def test_every_key_of_the_file_has_its_row_with_its_default() -> None:
    page = (ROOT / "docs" / "run_an_ab.md").read_text(encoding="utf-8")
    told: dict[str, Any] = {}
    for line in page[page.index("## The file") : page.index("## What is played")].splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            keys, defaults = (re.findall(r"`([^`]*)`", cell) for cell in cells[:2])
            defaults = defaults * len(keys) if len(defaults) == 1 else defaults
            told |= {key: tomllib.loads(f"value = {text}")["value"] for key, text in zip(keys, defaults, strict=True)}
    actual = flatten(msgspec.to_builtins(spec.ExperimentSpec()))
    assert told == {key: list(value) if isinstance(value, tuple) else value for key, value in actual.items()}
