"""Strict configuration: what is wrong is named with file, key, value and the nearest valid key."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mainspring.core.errors import ConfigError
from mainspring.plugins.cli.options import packaged_config
from mainspring.plugins.config_file import flatten, load, toml
from mainspring.plugins.executors.memory import asked_bytes
from mainspring.plugins.settings import Config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gatewys = []", ["unknown key gatewys", "did you mean 'gateways'?"]),
        ("[schedular]\nuse = 'fcfs'", ["unknown key schedular", "did you mean 'scheduler'?"]),
        ("[scheduler]\ntoken_budgt = 8", ["unknown key scheduler.token_budgt = 8", "did you mean 'token_budget'?"]),
        ("[scheduler]\ntoken_budget = 0", ["scheduler.token_budget = 0", ">= 1"]),
        ("[scheduler]\ntoken_budget = true", ["scheduler.token_budget = True", "expected `int`"]),
        ("[scheduler]\ntoken_budget = '8'", ["scheduler.token_budget = '8'", "expected `int`"]),
        ("[scheduler]\ndepth = 3", ["scheduler.depth = 3 is not supported (valid: 1, 2)"]),
        ("[scheduler]\nwatermark = 1.0", ["scheduler.watermark = 1.0"]),
        ("[executor]\nstall_s = 0", ["executor.stall_s = 0"]),
        ("[server]\nport = 70000", ["server.port = 70000", "65535"]),
        ("[log]\nlevel = 'loud'", ["log.level = 'loud' is not supported", "(valid: debug, error, info, warning)"]),
        ("[log]\nlevel = 'warn'", ["log.level = 'warn' is not supported; did you mean 'warning'?"]),
        ("[log]\nlevel = 3", ["log.level = 3"]),
        ("[journal]\nsize = 10000000000", ["journal.size = 10000000000", "<= 10000000"]),
        ("[executor]\nmemory = 0", ["executor.memory = 0", ">= 1"]),
        ("[executor]\nmemory = true", ["executor.memory = True"]),
        ("scheduler = 3", ["scheduler = 3", "expected `object`"]),
        ("gateways = 'ws'", ["gateways = 'ws'"]),
        ("x = ", ["not valid TOML"]),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    """F-01."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    for word in [str(file), *words]:
        assert word in str(caught.value)


def test_an_override_that_is_none_of_a_few_lists_them() -> None:
    with pytest.raises(ConfigError, match=r"--set: log\.format = 'xml' is not supported \(valid: console, json\)"):
        load(packaged_config(), ["log.format=xml"])


@pytest.mark.parametrize(
    "value",
    ["", 'a"b\\c\né', True, False, 0, -3, 1.5, 1e-05, [], ["ws", "http"], {}, {"a": 1, "b c": [True, {"d": "e"}]}],
)
def test_values_are_shown_as_the_file_spells_them(value: object) -> None:
    assert tomllib.loads(f"x = {toml(value)}") == {"x": value}


def test_memory_may_be_a_number_of_bytes() -> None:
    assert load(None, ["executor.memory=1073741824"]).config.executor.memory == 2**30
    assert asked_bytes(2**30) == asked_bytes("1GiB") == asked_bytes("1073741824") == 2**30
    assert asked_bytes("auto") is None


@pytest.mark.parametrize("item", ["token_budget", "=3", "scheduler.use.x=3", "scheduler.token_budget=many"])
def test_a_wrong_override_is_refused(item: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        load(packaged_config(), [item])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load(tmp_path / "nowhere.toml")


def test_the_packaged_file_is_the_default() -> None:
    """What plugins.toml says aloud is what the code does without it."""
    assert load(packaged_config()).config == Config()


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("scheduler.watermark", "0", 0.0),
        ("allocator.num_blocks", "0", 0),
        ("journal.path", "''", ""),
        ("journal.path", "", ""),
        ("gateways", "[]", ()),
        ("paranoid", "false", False),
        ("journal.prompts", "true", True),
        ("server.port", "0", 0),
        ("model.path", "/some/where.gguf", "/some/where.gguf"),
        ("scheduler.options", "{a = 1}", {"a": 1}),
    ],
)
def test_an_explicit_value_is_used_and_shown_with_its_origin(key: str, given: str, value: object) -> None:
    """F-02, F-12: false, zero and empty are values like others."""
    loaded = load(None, [f"{key}={given}"])
    node: object = loaded.config
    for name in key.split("."):
        node = getattr(node, name)
    assert node == value
    shown = {name: (shown, origin) for name, shown, origin in loaded.describe()}
    for name, part in flatten({key: value}).items():
        assert shown[name] == (list(part) if isinstance(part, tuple) else part, "--set") or part == value


def test_origins_by_layer(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[scheduler]\ntoken_budget = 8\n")
    origins = {key: origin for key, _, origin in load(file, ["scheduler.depth=2"]).describe()}
    assert origins["scheduler.token_budget"] == "mine.toml"
    assert origins["scheduler.depth"] == "--set"
    assert origins["scheduler.use"] == "default"
