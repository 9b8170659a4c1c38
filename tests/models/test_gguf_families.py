"""GGUF files of every family and type answer as the same weights in a Hugging Face folder do (H-08, H-10)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from mainspring.core.errors import ConfigError
from mainspring.core.messages import GrantedRow, StepLaunch
from mainspring.plugins.executors.batch import Limits, build
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.executors.plain_ops import PlainOps
from mainspring.plugins.models.checkpoint import open_checkpoint
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.rope import Rope, Rotary
from mainspring.plugins.models.tiny import write_tiny_model

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "tie_word_embeddings": False}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8}


def logits(path: Path) -> torch.Tensor:
    """Of the last of 24 tokens, by the reference operators."""
    checkpoint = open_checkpoint(path)
    model = checkpoint.config
    heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope, model.windows)
    ops = PlainOps(heads, KVShape(model.num_layers, 2, 16, model.num_kv_heads, model.head_dim))
    network = Llama(model, lambda name: checkpoint.read(name).float(), ops)
    row = GrantedRow("a", 0, 24, tuple(range(3, 27)), True, (0, 1), tuple(range(24)))
    with torch.inference_mode():
        out = network.forward(ops.prepare(build(StepLaunch(1, (row,), None), Limits(model.vocab_size, 64, 2, 16))))
    assert out is not None
    return out


@pytest.mark.parametrize(
    ("architecture", "overrides", "fields"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}, {}),
        ("llama", MISTRAL, {"llama.attention.sliding_window": 8}),
        ("qwen2", QWEN2, {}),
        ("qwen2", QWEN2 | {"tie_word_embeddings": True}, {}),
        ("qwen3", QWEN3, {}),
        (
            "qwen2",
            QWEN2 | {"rope_scaling": YARN},
            {
                "qwen2.rope.scaling.type": "yarn",
                "qwen2.rope.scaling.factor": 4.0,
                "qwen2.rope.scaling.original_context_length": 16,
            },
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        ),
    ],
    ids=["llama-biases", "mistral", "qwen2", "qwen2-tied", "qwen3", "yarn", "linear"],
)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_families(
    tmp_path: Path, write_gguf: Any, architecture: str, overrides: dict[str, Any], fields: dict[str, Any], kind: Kind
) -> None:
    path = tmp_path / "model.gguf"
    config, weights = write_gguf(path, kind, architecture=architecture, fields=fields, **overrides)
    found = open_checkpoint(path).config
    names = ("rope", "windows", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "tied", "head_dim", "max_positions")
    assert [getattr(found, name) for name in names] == [getattr(config, name) for name in names]
    write_tiny_model(tmp_path / "folder", weights=weights, **overrides)
    torch.testing.assert_close(logits(path), logits(tmp_path / "folder"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q4_K, Kind.Q6_K])
def test_every_type_runs(tmp_path: Path, write_gguf: Any, kind: Kind) -> None:
    path = tmp_path / "model.gguf"
    _, weights = write_gguf(path, kind, **WIDE)
    write_tiny_model(tmp_path / "folder", weights=weights, **WIDE)
    made = logits(path)
    assert made.isfinite().all() and made.std() > 0.01
    torch.testing.assert_close(made, logits(tmp_path / "folder"), rtol=1e-5, atol=1e-5)


def test_llama3_scaling_is_a_tensor_of_divisors_h03(tmp_path: Path, write_gguf: Any) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    plain = divisors_of(tmp_path, scaling)
    path = tmp_path / "model.gguf"
    _, weights = write_gguf(path, extra={"rope_freqs.weight": plain})
    write_tiny_model(tmp_path / "folder", weights=weights, rope_scaling=scaling)
    torch.testing.assert_close(logits(path), logits(tmp_path / "folder"), rtol=1e-5, atol=1e-5)
    write_gguf(path, extra={"rope_freqs.weight": plain[:-1]})
    with pytest.raises(ConfigError, match=r"'rope_freqs\.weight' has 7 values for 8 pairs"):
        open_checkpoint(path)


def divisors_of(folder: Path, scaling: dict[str, Any]) -> Any:
    """By how much the scaling divides each frequency."""
    scaled = write_tiny_model(folder / "scaled", rope_scaling=scaling)
    plain = Rotary(Rope(scaled.rope.theta), scaled.head_dim).frequencies
    return (plain / Rotary(scaled.rope, scaled.head_dim).frequencies).numpy().astype(np.float32)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor' is missing"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "key llama.rope.scaling.yarn_log_multiplier"),
        ({"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": 2}, "_pattern = 2"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(
    tmp_path: Path, write_gguf: Any, fields: dict[str, Any], said: str
) -> None:
    write_gguf(path := tmp_path / "x.gguf", fields=fields)
    with pytest.raises(ConfigError, match=said):
        open_checkpoint(path)


def test_norms_missing_in_a_qwen3_file_are_named(tmp_path: Path, write_gguf: Any) -> None:
    write_gguf(path := tmp_path / "x.gguf", architecture="qwen3", drop=("blk.1.attn_k_norm.weight",), **QWEN3)
    with pytest.raises(ConfigError, match=r"1 tensor\(s\) missing: model\.layers\.1\.self_attn\.k_norm\.weight"):
        open_checkpoint(path)
