"""The documentation says what the code does: every name has its row, links resolve, and what claims to run runs.

Blocks whose info string is ``python runnable`` and the scripts in ``examples/`` are executed with the real tokenizer
and an executor without a model; the one transcript of the README is made again with the model itself.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mainspring.core import hookspecs, messages
from mainspring.core.errors import ERROR_KINDS
from mainspring.core.registry import SLOTS, Registry
from mainspring.plugins import schema
from mainspring.plugins.config_file import flatten
from mainspring.plugins.engine import Engine, Result
from mainspring.plugins.gateways import guarded
from mainspring.plugins.settings import Config
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.wire import errors, llm_v1, llm_v1_frames, llm_v1_requests

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
PORT = "127.0.0.1:8000"

Row = list[str]


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_blocks(text: str) -> str:
    """``text`` without what stands in fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def sections(text: str) -> dict[str, str]:
    """Heading, without marks and back-quotes -> what stands below it, up to the next heading of any level."""
    parts = re.split(r"^#+ (.*)$", without_blocks(text), flags=re.MULTILINE)
    return {title.replace("`", ""): body for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def rows(text: str) -> list[Row]:
    """Cells of every table row, headers and rules left out, in the order of the text."""
    found: list[Row] = []
    lines = without_blocks(text).splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("| ---") and not following.startswith("| ---"):
            found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def code(cell: str) -> str:
    """What stands in back-quotes in a cell that holds nothing else, else ``""``."""
    match = re.fullmatch(r"`([^`]*)`", cell)
    return match[1] if match else ""


def names(text: str) -> list[str]:
    """The first cells of all rows, without back-quotes."""
    return [code(row[0]) or row[0] for row in rows(text)]


# --- parity ----------------------------------------------------------------------------------------------------------


def test_every_configuration_key_has_its_row_with_its_default() -> None:
    actual = flatten(msgspec.to_builtins(Config()))
    told = {code(row[0]): code(row[2]) for row in rows(read("configuration.md")) if len(row) == 5}
    assert told.keys() == actual.keys()
    for key, default in actual.items():
        value = tomllib.loads(f"value = {told[key]}")["value"]
        assert value == (list(default) if isinstance(default, tuple) else default), key
    assert len(told) == sum(len(row) == 5 for row in rows(read("configuration.md"))), "a key stands there twice"


def test_every_hook_has_its_row() -> None:
    hooks = {
        f"{name}({', '.join(inspect.signature(hook).parameters)})"
        for name, hook in vars(hookspecs).items()
        if hasattr(hook, f"{hookspecs.PROJECT}_spec")
    }
    assert len(hooks) > 5
    assert sorted(names(sections(read("plugins.md"))["Hooks"])) == sorted(hooks)


def test_every_slot_has_its_row() -> None:
    told = {row[0]: (code(row[1]), code(row[2])) for row in rows(sections(read("plugins.md"))["Slots"])}
    assert told == {name: (slot.folder.replace(".", "/") + "/", slot.hook) for name, slot in SLOTS.items()}


def test_every_message_has_its_row() -> None:
    kinds = {
        name
        for name, kind in vars(messages).items()
        if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
    }
    assert sorted(names(sections(read("life_of_a_request.md"))["Messages"])) == sorted(kinds)


def test_every_end_has_its_row() -> None:
    told = names(sections(read("life_of_a_request.md"))["Ends"])
    assert sorted(told) == sorted(reason.value for reason in messages.FinishReason)


def test_every_verb_has_its_section_with_its_arguments() -> None:
    told = {
        title.split()[1]: body for title, body in sections(read("cli.md")).items() if title.startswith("mainspring ")
    }
    verbs = {info.name: info.factory() for info in Registry().available("command")}
    assert told.keys() == verbs.keys()
    everywhere = {"--help", "--config", "--set"}
    for name, verb in verbs.items():
        parser = argparse.ArgumentParser()
        verb.arguments(parser)
        options = {option for action in parser._actions for option in action.option_strings if option[:2] == "--"}
        shared = set(re.findall(r"--[a-z-]+", told["generate"])) if "arguments of `generate`" in told[name] else set()
        missing = options - everywhere - set(re.findall(r"--[a-z-]+", told[name])) - shared
        assert not missing, f"mainspring {name}"


def test_every_field_of_a_request_has_its_row_with_its_default() -> None:
    told = {code(row[0]): row[2] for row in rows(sections(read("library.md"))["The request"])}
    actual = {field.name: field.default for field in msgspec.structs.fields(schema.GenerateRequest)}
    del actual["extra"]  # the penalties, in the text below the table
    assert told.keys() == actual.keys()
    for name, default in actual.items():
        if name in ("prompt", "messages", "token_ids"):
            assert not told[name]
        elif told[name] == "none":
            assert default in (None, ()), name
        else:
            value = tomllib.loads(f"value = {code(told[name])}")["value"]
            assert (tuple(value) if isinstance(value, list) else value) == default, name


def test_every_field_of_a_result_has_its_row() -> None:
    (fields, _) = read("library.md").split("`stream` yields events")
    assert names(sections(fields)["Results"]) == [field.name for field in msgspec.structs.fields(Result)]


def test_every_argument_of_the_engine_has_its_row() -> None:
    _, *parameters = inspect.signature(Engine.__init__).parameters
    assert names(sections(read("library.md"))["Configuration"]) == parameters


def test_every_error_has_its_row() -> None:
    told = {code(row[0]): tuple(row[1:]) for row in rows(sections(read("protocol.md"))["Errors"])}
    actual = {name: (str(kind.status), str(kind.close or ""), kind.fault) for name, kind in ERROR_KINDS.items()}
    assert told == actual


def test_every_frame_has_its_section_and_every_field_its_row() -> None:
    told = sections(read("protocol.md"))
    frames = llm_v1_frames.ServerFrame.__args__
    for frame in frames:
        tag = frame.__struct_config__.tag
        assert names(told[tag]) == [field.name for field in msgspec.structs.fields(frame)], tag
    features = set(re.findall(r"`(\w+)`", next(row[2] for row in rows(told["hello"]) if row[0] == "`features`")))
    assert features == set(llm_v1.FEATURES)
    requests: dict[str, tuple[str, ...]] = {
        "generate": llm_v1_requests.GenerateFrame._fields,
        "resume": llm_v1_requests.ResumeFrame._fields,
        "cancel": llm_v1_requests.CancelFrame._fields,
    }
    for kind, fields in requests.items():
        assert names(told[kind]) == list(fields), kind
    assert {*requests, "ping"} == set(llm_v1_requests._TYPES)


def test_the_limits_are_those_of_the_code() -> None:
    told = {row[0]: row[1] for row in rows(sections(read("protocol.md"))["Limits"])}
    assert told["characters of an `id`"] == str(llm_v1_requests.MAX_ID_CHARS)
    assert told["bad frames in a row"] == str(errors.MAX_BAD_FRAMES)
    pings = next(value for name, value in told.items() if name.startswith("bytes of answers to pings"))
    assert pings == str(guarded.MAX_REPLY_BYTES)
    assert told["stop strings"] == str(schema.MAX_STOPS)
    assert told["characters of a stop string"] == str(schema.MAX_STOP_CHARS)
    assert told["characters of `tenant` and `cache_salt`"] == str(schema.MAX_NAME_CHARS)
    assert f"| {llm_v1.RETRY_AFTER_MS}, for codes whose cause is load |" in read("protocol.md")


def test_every_decision_is_in_its_index() -> None:
    index = (DOCS / "adr" / "README.md").read_text(encoding="utf-8")
    files = sorted(file.name for file in (DOCS / "adr").glob("0*.md"))
    assert re.findall(r"\]\((0[^)]*)\)", index) == files
    for file in files:
        text = (DOCS / "adr" / file).read_text(encoding="utf-8")
        assert text.startswith(f"# {file[:4]}: ")
        assert [*sections(text)][1:] == ["Context", "Decision", "Consequences"], file


def test_the_parser_of_tables_sees_what_is_missing() -> None:
    text = (
        "# A\n| K | V |\n| --- | --- |\n| `x` | 1 |\n\n```\n# no\n| `y` | 2 |\n```\n## `b` c\n| Z |\n| --- |\n| z |\n"
    )
    assert rows(text) == [["`x`", "1"], ["z"]]
    assert names(text) == ["x", "z"]
    assert list(sections(text)) == ["A", "b c"]


# --- links -----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", without_blocks(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = without_blocks(page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), target
        assert place.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(place), target


# --- what runs -------------------------------------------------------------------------------------------------------


def blocks() -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python runnable\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            yield pytest.param(match[1], id=f"{page.relative_to(ROOT)}:{line}")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """``executor.use = "auto"`` chooses an executor that makes ids of the default model's vocabulary out of nothing."""

    def choose(config: Config) -> tuple[FakeExecutor, str]:
        return FakeExecutor(num_blocks=512, vocab_size=49152, max_context=8192, first_id=20), "for the documentation"

    monkeypatch.setattr("mainspring.plugins.executors.auto.choose", choose)


@pytest.fixture
def address(no_model: None) -> Iterator[str]:
    """Host and port of a server that runs in a thread of its own."""
    engine = Engine(overrides=["server.port=0"], gateways=True)
    port: int = engine.gateways[0].port
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with engine:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(30)
    yield f"127.0.0.1:{port}"
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("source", list(blocks()))
def test_blocks_run(source: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    if PORT in source:
        source = source.replace(PORT, request.getfixturevalue("address"))
    else:
        request.getfixturevalue("no_model")
    exec(compile(source, "block", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_examples_run(
    script: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = []
    if PORT in script.read_text(encoding="utf-8"):
        arguments = ["ws://" + request.getfixturevalue("address")]
    else:
        request.getfixturevalue("no_model")
    monkeypatch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_the_transcript_of_the_readme_is_what_the_model_says() -> None:
    """The one check with the model; float32, so that every machine says the same."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    transcript = re.search(r"^```console\n\$ mainspring (generate .*)\n((?:.*\n)*?)```$", text, flags=re.MULTILINE)
    assert transcript
    quoted = re.match(r'generate --chat "([^"]*)" (.*)', transcript[1])
    assert quoted
    more = ["--dtype", "fp32", "--set", "executor.memory=1GiB"]
    command = [sys.executable, "-m", "mainspring", "generate", "--chat", quoted[1], *quoted[2].split(), *more]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == transcript[2]
