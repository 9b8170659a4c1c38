"""The check for the day there is a device: its correctness half on the emulator, its measurements in tiny sizes, all on
nothing but torch and NumPy."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.executors.emulated import EmulatedDevice

ROOT = Path(__file__).parents[2]
ABSENT = ("anyio", "cupy", "gguf", "jinja2", "msgspec", "pluggy", "safetensors", "structlog", "websockets")
SCRIPT = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
runpy.run_path({str(ROOT / "benchmarks" / "gpu_check.py")!r}, run_name="__main__")
"""


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_primitives_and_measurements_run_without_a_device(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = check("--cpu", "--all", "--only", "primitives", "speed", "models", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    results = {result["name"]: result for result in json.loads(file.read_text())}
    assert results["failed"]["text"] == "nothing"
    assert sum(name.startswith("primitive ") and result["ok"] for name, result in results.items()) == 9
    assert all(result["value"] > 0 for result in results.values() if "value" in result)
    assert {"bf16 matrix product", "host time of a launch", "swap out"} <= set(results)


def test_without_a_device_it_says_why() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    done = check()
    assert done.returncode == 2
    assert "executor.use = 'cupy': torch" in done.stderr


@pytest.mark.slow
def test_what_there_is_no_time_for_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    done = check("--cpu", "--seconds", "0", "--only", "engine", "speed", "--all", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [result["name"] for result in json.loads(file.read_text()) if "skipped" in result]
    assert len(set(skipped)) == len(skipped) == 6 + 7
    assert {"SmolLM2-135M, bfloat16, pool int8", "SmolLM2-135M, bfloat16, pool bfloat16", "rows", "swap"} <= set(
        skipped
    )


def part(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the check, as the script finds it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module(f"gpu.{name}")


def test_every_kernel_without_time_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, report = part("kernels", monkeypatch), part("report", monkeypatch).Report(0)
    monkeypatch.setattr(kernels, "row_kernels", lambda *_: None)
    monkeypatch.setattr(kernels, "rotation", lambda *_: 0.0)
    kernels.check_kernels(EmulatedDevice(), report, small=True)
    skipped = {result["name"] for result in report.results if "skipped" in result}
    assert len(skipped) == len(kernels.CASES) + 1
    assert {"Llama-3-8B bf16, pool bf16, softcap", "Llama-3-8B bf16: shared prefix"} <= skipped


@pytest.mark.slow
def test_a_network_that_gives_no_logits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def forward(self, batch: object) -> None:
            return None

    engine, report = part("engine", monkeypatch), part("report", monkeypatch).Report(60)
    monkeypatch.setattr(engine, "network", lambda *_: Silent())
    with pytest.raises(AssertionError, match="SmolLM2-135M, 1 layers, float32, pool float32: logits"):
        engine.compare(
            EmulatedDevice(), report, engine.with_small_vocabulary(engine.SMOL), 1, engine.FP32, engine.FP32, 20
        )


def test_numbers_that_are_not_finite_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    report = part("report", monkeypatch).Report(60)
    report.check("endless", float("inf"), 0.5)
    report.check("none", float("nan"), 0.5)

    def refused(word: str) -> None:
        raise AssertionError(word)

    read = json.loads(report.as_json(), parse_constant=refused)
    assert [(one["error"], one["bound"], one["ok"]) for one in read] == [("inf", 0.5, False), ("nan", 0.5, False)]
