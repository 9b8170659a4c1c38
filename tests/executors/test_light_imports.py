"""The operators run where only torch and NumPy are installed: on a machine that is lent for a measurement, say."""

from __future__ import annotations

import subprocess
import sys

import pytest

ABSENT = ("anyio", "cupy", "gguf", "jinja2", "msgspec", "pluggy", "safetensors", "structlog", "websockets")
SCRIPT = """
import importlib, sys
sys.modules.update(dict.fromkeys({absent!r}))  # importing one of them fails
importlib.import_module("mainspring.plugins.{module}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["executors.cupy_network", "executors.plain_ops", "executors.torch_ops", "models.config_hf"]
)
def test_needs_torch_and_numpy_only(module: str) -> None:
    script = SCRIPT.format(absent=ABSENT, module=module)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
