"""The check for the day there is a device: its correctness half on the emulator, its measurements in tiny sizes, all on
nothing but torch and NumPy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = check("--cpu", "--seconds", "0", "--only", "engine", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum("skipped" in result for result in json.loads(file.read_text())) == 6
