"""``mainspring generate --input`` on an engine without a model: what a line is, and how many run at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.__main__ import main
from mainspring.core.config import Config
from mainspring.plugins.testing.fake_executor import FakeExecutor

QUIET = ["--set", "journal.path=", "--set", "sampler.use=scripted"]


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(config: Config) -> tuple[FakeExecutor, str]:
        return FakeExecutor(num_blocks=512, vocab_size=49152, first_id=20), "for the test"

    monkeypatch.setattr("mainspring.plugins.executors.auto.choose", choose)


def results(tmp_path: Path, text: str, *arguments: str, encoding: str = "utf-8") -> list[dict[str, Any]]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(text.encode(encoding))
    main(["generate", "--input", str(source), "--output", str(target), *QUIET, *arguments])
    return [json.loads(line) for line in target.read_text(encoding="utf-8").split("\n") if line]


def line(prompt: str = "Hi", **fields: Any) -> str:
    return json.dumps({"prompt": prompt, "max_tokens": 1, "ignore_eos": True, **fields}, ensure_ascii=False)


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """JSON lets other separators stand in a string; editors put a mark before the first line, or carriage returns."""
    prompts = ["a\u2028b", "a\u2029b", "a\u0085b"]
    found = results(tmp_path, "\r\n".join(map(line, prompts)), encoding="utf-8-sig")
    assert [(one["finish_reason"], one["usage"]["output"]) for one in found] == [("length", 1)] * 3


def test_an_error_names_the_line_of_the_file(tmp_path: Path) -> None:
    found = results(tmp_path, f"\n{line()}\n\nnot json\n[1]\n")
    assert [one["id"] for one in found] == [0, 1, 2]
    assert "line 4: " in found[1]["error"]["message"]
    assert "line 5 is not" in found[2]["error"]["message"]


def test_more_lines_than_may_wait_all_run(tmp_path: Path) -> None:
    limits = ["--set", "scheduler.max_waiting=3", "--set", "scheduler.max_running=2"]
    found = results(tmp_path, "\n".join(line(id=index) for index in range(40)), *limits)
    assert [(one["id"], one["finish_reason"]) for one in found] == [(index, "length") for index in range(40)]
