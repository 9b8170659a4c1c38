"""``mainspring plugins`` shows every slot with its available and active plugins."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec
import pytest

from mainspring.core.__main__ import main
from mainspring.plugins.cli.plugins import options_of


@dataclass(frozen=True)
class DataOptions:
    tickets: int
    weights: dict[str, float] = field(default_factory=dict)


class StructOptions(msgspec.Struct, frozen=True):
    half_life_s: float = 30.0


def test_options_of_both_kinds() -> None:
    assert options_of(DataOptions) == {
        "tickets": {"type": "int"},
        "weights": {"type": "dict[str, float]", "default": {}},
    }
    assert options_of(StructOptions) == {"half_life_s": {"type": "float", "default": 30.0}}
    assert options_of(None) == {}


def test_json_lists_every_slot_and_marks_the_active(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    slots = found["slots"]
    assert {"scheduler", "wrapper", "allocator", "sampler", "executor", "gateway", "command"} <= set(slots)
    schedulers = {plugin["name"]: plugin for plugin in slots["scheduler"]}
    assert schedulers["fcfs"]["active"] is True
    assert schedulers["fcfs"]["origin"] == "mainspring"
    assert schedulers["fcfs"]["api_level"] in found["api_levels"]
    assert [name for name, plugin in schedulers.items() if plugin["active"]] == ["fcfs"]
    assert {"plugins", "doctor", "config", "story"} <= {plugin["name"] for plugin in slots["command"]}


def test_a_plugin_given_by_path_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    path = "mainspring.schedulers.fcfs:Fcfs"
    assert main(["plugins", "--set", f'scheduler.use="{path}"']) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if path in line)
    assert row.split()[:3] == ["scheduler", path, "yes"]


def test_f03_a_chosen_plugin_that_cannot_load_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "--set", "sampler.use=no_such_package:Sampler"]) == 2
    err = capsys.readouterr().err
    assert "no_such_package" in err
    assert len(err.splitlines()) == 1
