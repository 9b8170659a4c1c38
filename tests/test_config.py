"""Strict configuration: what is wrong is named with file, key, value and the nearest valid key."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.core.errors import ConfigError
from mainspring.plugins.cli.options import packaged_config
from mainspring.plugins.config_file import flatten, load
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
        ("[scheduler]\ndepth = 3", ["scheduler.depth = 3"]),
        ("[scheduler]\nwatermark = 1.0", ["scheduler.watermark = 1.0"]),
        ("[executor]\nstall_s = 0", ["executor.stall_s = 0"]),
        ("[server]\nport = 70000", ["server.port = 70000", "65535"]),
        ("[log]\nlevel = 'loud'", ["log.level = 'loud'"]),
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
