"""Strict configuration: what is wrong is named with file, key, value and the nearest valid key."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from mainspring.core.errors import ConfigError
from mainspring.core.registry import Registry
from mainspring.plugins.chosen import check, chosen
from mainspring.plugins.cli.options import packaged_config
from mainspring.plugins.config_file import flatten, load, toml
from mainspring.plugins.executors.memory import asked_bytes
from mainspring.plugins.gateways.keys import load_keys
from mainspring.plugins.settings import Config, ServerConfig
from mainspring.plugins.step_time.files import FOLDER, ready_made
from mainspring.plugins.step_time.files import load as load_step_time


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gatewys = []", ["unknown key gatewys", "did you mean 'gateways'?"]),
        ("[schedular]\nuse = 'fcfs'", ["unknown key schedular", "did you mean 'scheduler'?"]),
        ("[scheduler]\ntoken_budgt = 8", ["unknown key scheduler.token_budgt = 8", "did you mean 'token_budget'?"]),
        ("[scheduler]\ntoken_budget = 0", ["scheduler.token_budget = 0", ">= 1"]),
        ("[scheduler]\ntoken_budget = true", ["scheduler.token_budget = True", "expected `int`"]),
        ("[scheduler]\ntoken_budget = '8'", ["scheduler.token_budget = '8'", "expected `int`"]),
        ("[scheduler]\ndepth = 3", ["scheduler.depth = 3 is not supported (valid: 1, 2, auto)"]),
        ("[scheduler]\ndepth = 'atuo'", ["scheduler.depth = 'atuo' is not supported; did you mean 'auto'? (valid: 1,"]),
        ("[scheduler]\ndepth = '2'", ["scheduler.depth = '2' is not supported; did you mean 2, without quotes?"]),
        ("[scheduler]\ndepth = true", ["scheduler.depth = True", "expected `int | str`"]),
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
        ("x = " + "[" * 5000, ["not valid TOML"]),
        ("[server]\nhost = ''", ["server.host = ''"]),  # would listen on every address
        ("[scheduler]\nTOKEN_BUDGET = 8", ["did you mean 'token_budget'?"]),
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
        ("scheduler.depth", "auto", "auto"),
        ("scheduler.depth", "2", 2),
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


def test_the_page_shows_what_a_misspelt_key_really_gets() -> None:
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")
    (shown,) = re.findall(
        r"^\$ mainspring serve --set (scheduler\.token_buget=3)\nmainspring: (.*)$", page, re.MULTILINE
    )
    with pytest.raises(ConfigError) as refused:
        load(None, [shown[0]])
    assert str(refused.value) == shown[1]


def test_a_mark_that_an_editor_put_first_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "plugins.toml"
    file.write_text("[scheduler]\nuse = 'fair'\n", encoding="utf-8-sig")
    assert load(file).config.scheduler.use == "fair"
    file.write_text("[alice]\nkey = 'an-own-key-of-alice'\n", encoding="utf-8-sig")
    assert load_keys(ServerConfig(keys_file=str(file)))
    ready = next(iter(ready_made()))
    file.write_text((FOLDER / f"{ready}.toml").read_text(encoding="utf-8"), encoding="utf-8-sig")
    assert load_step_time(file) == load_step_time(ready)


@pytest.mark.parametrize(
    ("item", "options"),
    [
        ("scheduler.options.weights={a=2.0}", {"weights": {"a": 2.0}}),
        ('scheduler.options.weights."team.a"=2.0', {"weights": {"team.a": 2.0}}),
        (" scheduler . options . lift = false ", {"lift": False}),
        ("scheduler.options.x=a = b", {"x": "a = b"}),
        ("scheduler.options.x=3\nuse=4", {"x": "3\nuse=4"}),
        ("scheduler.options.x=" + "[" * 5000, {"x": "[" * 5000}),
    ],
)
def test_what_stands_on_the_left_is_a_key_and_on_the_right_one_value(item: str, options: dict[str, object]) -> None:
    loaded = load(None, [item])
    assert loaded.config.scheduler.options == options
    (key,) = flatten({"scheduler": {"options": options}})
    assert loaded.origin == {key: "--set"}


@pytest.mark.parametrize("item", ["=3", "scheduler", "a..b=3", ".a=3", "a.=3", "# a=3", "a b=3", "[a]\nb=3"])
def test_what_is_no_key_is_refused(item: str) -> None:
    with pytest.raises(ConfigError, match=r"--set.*(is not a key|expected key=value|unknown key)"):
        load(None, [item])


@pytest.mark.parametrize("size", ["0.0000001KiB", "9" * 400 + "GiB", "0", "-4GiB", "4 apples", "GiB", ""])
def test_no_size(size: str) -> None:
    with pytest.raises(ConfigError, match=r"executor\.memory = .*expected a size"):
        asked_bytes(size)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (
            ["scheduler.options.victims=latst"],
            r"scheduler\.options\.victims = 'latst' .*did you mean 'latest'",
        ),
        (["allocator.options.preempt=swop"], r"allocator\.options\.preempt = 'swop' .*did you mean 'swap'"),
        (["scheduler.use=deadline", "scheduler.options.order=slak"], "did you mean 'slack'"),
        (["scheduler.use=FCFS"], "did you mean 'fcfs'"),
        (["scheduler.wrap=[{max_wait_s=3.0}]"], "names no wrapper"),
        (["scheduler.wrap=[{use=3}]"], "names no wrapper"),
        (["scheduler.shadow.options.x=1"], r"scheduler\.shadow\.use is missing"),
        (["scheduler.shadow.wrap=['ageing']"], r"scheduler\.shadow\.use is missing"),
        (["scheduler.shadow.use=fair", "scheduler.shadow.options.lift=3"], "expected `bool`"),
    ],
)
def test_what_the_start_refuses_before_it_reads_a_model(items: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_all(load(None, items).config)


def check_all(config: Config) -> None:
    registry = Registry()
    for choice in chosen(config):
        check(choice, config, registry, "test")
