"""``mainspring generate`` on the real model, as its user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
REFERENCE = json.loads((Path(__file__).parents[1] / "golden" / "greedy_reference.json").read_text())


def mainspring(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mainspring", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300, check=False)


def test_one_prompt_as_json() -> None:
    done = mainspring(
        "generate", "The capital of France is", "--max-tokens=3", "--temperature=0", "--dtype=fp32", "--json"
    )
    assert done.returncode == 0, done.stderr
    out: dict[str, Any] = json.loads(done.stdout)
    assert out["text"].startswith(" Paris")
    assert (out["finish_reason"], out["usage"]) == ("length", {"input": 5, "cached": 0, "output": 3})
    assert len(out["token_ids"]) == 3
    assert out["timing"]["total"] >= out["timing"]["ttft"] > 0


def test_a_file_of_requests(tmp_path: Path) -> None:
    """Results in input order; a bad line has its error in its place and the others run."""
    case = min(REFERENCE["cases"], key=lambda case: len(case["prompt_ids"]))
    exact = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
    lines = [
        json.dumps({"id": "exact", "token_ids": case["prompt_ids"], **exact}),
        json.dumps({"id": "typo", "prompt": "Hi", "temprature": 1}),
        "not json",
        json.dumps({"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}),
        json.dumps({"id": "seeded", "prompt": "Once", "max_tokens": 6, "seed": 3}),
        json.dumps({"id": "seeded again", "prompt": "Once", "max_tokens": 6, "seed": 3}),
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    done = mainspring("generate", "--input", str(source), "--output", str(target), "--set", "executor.dtype=fp32")
    assert done.returncode == 1
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert [result["id"] for result in results] == ["exact", "typo", 2, 3, "seeded", "seeded again"]
    assert results[0]["token_ids"] == case["output_ids"][:8]
    assert results[1]["error"]["param"] == "temprature"
    assert "temperature" in results[1]["error"]["message"]
    assert results[2]["error"]["code"] == "invalid_json"
    assert results[3]["usage"]["output"] >= 1
    assert results[4]["token_ids"] == results[5]["token_ids"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate"], "either a PROMPT or --input"),
        (["generate", "x", "--set", "scheduler.use=fcfz"], "did you mean 'fcfs'?"),
        (["generate", "x", "--set", "executor.use=torhc"], "did you mean 'torch'?"),
        (["generate", "x", "--set", "model.path=/no/such.gguf"], "/no/such.gguf"),
        (["generate", "x", "--dtype", "fp31"], "fp32"),
        (["generate", "x", "--set", "executor.memory=1MiB"], "executor.memory"),
    ],
)
def test_a_wrong_start_says_why(arguments: list[str], words: str) -> None:
    """E-14, E-17, F-01: exit code 2 and one line."""
    done = mainspring(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_story_of_a_request() -> None:
    done = mainspring("generate", "Hi", "--max-tokens=2", "--json")
    rid = json.loads(done.stdout)["rid"]
    told = mainspring("story", rid)
    assert told.returncode == 0, told.stderr
    for where in ("host", "plan", "allocator", "sampler", "executor", "result", "text"):
        assert where in told.stdout
    assert os.environ["XDG_STATE_HOME"] not in told.stdout
