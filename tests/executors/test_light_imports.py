"""The operators run where only torch and NumPy are installed: on a machine that is lent for a measurement, say."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = ("anyio", "cupy", "gguf", "jinja2", "msgspec", "pluggy", "safetensors", "structlog", "websockets")
MODULES = ("executors.cupy_network", "executors.plain_ops", "executors.torch_ops", "models.config_hf")
SCRIPT = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # importing one of them fails
for module in {MODULES!r}:
    importlib.import_module("mainspring.plugins." + module)
"""


@pytest.mark.slow
def test_needs_torch_and_numpy_only() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
