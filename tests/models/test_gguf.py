"""GGUF files: what is read, and what is refused by name before any weight is read (H-08, E-17)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from tests.native_kernels import native_library

from mainspring.core.config import ExecutorConfig
from mainspring.core.errors import ConfigError
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.models.checkpoint import open_checkpoint
from mainspring.plugins.models.gguf import GgufCheckpoint, model_name
from mainspring.plugins.models.gguf_header import TYPES, read_header
from mainspring.plugins.settings import Config, ModelConfig


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_every_tensor_comes_back_dequantised_and_in_order(tmp_path: Path, write_gguf: Any, kind: Kind) -> None:
    config, weights = write_gguf(path := tmp_path / "tiny.gguf", kind)
    opened = open_checkpoint(path)
    assert opened.config.tensor_shapes() == config.tensor_shapes()
    assert opened.names == set(weights)
    for name, values in weights.items():
        torch.testing.assert_close(opened.read(name), values, rtol=0, atol=0, msg=name)
    assert opened.config.end_token_ids == (2,)


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q6_K])
def test_k_quants_are_dequantised(tmp_path: Path, kind: Kind) -> None:
    """The package cannot make them, so the blocks are random and the package's own reading is the answer."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (4, 2 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(path := tmp_path / "k.gguf", "llama")
    writer.add_tensor("x.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = read_header(path).tensors
    assert tensor.shape == (4, 2 * elements)
    np.testing.assert_array_equal(gguf.dequantize(tensor.data, Kind(tensor.type.number)), gguf.dequantize(raw, kind))


def test_types_are_as_the_gguf_package_has_them() -> None:
    for number, stored in TYPES.items():
        kind = Kind(number)
        assert stored == (number, kind.name, *gguf.GGML_QUANT_SIZES[kind])


def test_header_agrees_with_the_gguf_package(tmp_path: Path, write_gguf: Any) -> None:
    write_gguf(path := tmp_path / "tiny.gguf", Kind.Q8_0)
    theirs, ours = gguf.GGUFReader(path), read_header(path)
    assert [tensor.name for tensor in ours.tensors] == [tensor.name for tensor in theirs.tensors]
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        np.testing.assert_array_equal(mine.data.reshape(-1), np.asarray(other.data).view(np.uint8).reshape(-1))
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents(), key


def test_names_lose_the_storage_type() -> None:
    assert model_name(Path("SmolLM2-135M-Instruct.Q4_1.gguf")) == "SmolLM2-135M-Instruct"
    assert model_name(Path("tiny-llama-Q4_K_M.gguf")) == "tiny-llama"
    assert model_name(Path("plain.gguf")) == "plain"


def test_unknown_architecture_h08(tmp_path: Path, write_gguf: Any) -> None:
    write_gguf(path := tmp_path / "x.gguf", architecture="mamba")
    with pytest.raises(ConfigError, match=r"x\.gguf.*general.architecture = 'mamba'.*valid: llama"):
        open_checkpoint(path)


def test_unsupported_type_names_tensor_and_list_h08(tmp_path: Path, write_gguf: Any) -> None:
    write_gguf(path := tmp_path / "x.gguf", Kind.Q5_1)
    with pytest.raises(ConfigError, match=r"tensor 'token_embd.weight' has type Q5_1, supported are F32, .*Q6_K"):
        open_checkpoint(path)


@pytest.mark.parametrize("kept", [3, 20, 200, 700, -100])
def test_truncated_file_h08(tmp_path: Path, write_gguf: Any, kept: int) -> None:
    write_gguf(path := tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"x\.gguf.*(not a GGUF|cut off)"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("token_embd.weight", "token_embd.weight"),
    ],
)
def test_missing_tensor_is_named(tmp_path: Path, write_gguf: Any, missing: str, named: str) -> None:
    write_gguf(path := tmp_path / "x.gguf", drop=(missing,))
    with pytest.raises(ConfigError, match=rf"1 tensor\(s\) missing: {re.escape(named)}"):
        open_checkpoint(path)


def test_surplus_and_misshapen_tensors_are_named_h10(tmp_path: Path, write_gguf: Any) -> None:
    write_gguf(path := tmp_path / "x.gguf", extra={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)})
    with pytest.raises(ConfigError, match=r"no place for: blk\.0\.attn_sinks\.weight"):
        open_checkpoint(path)
    write_gguf(path, extra={"blk.0.attn_q.bias": np.zeros(64, np.float32)})
    with pytest.raises(ConfigError, match=r"5 tensor\(s\) missing: model\.layers\.0\.self_attn\.k_proj\.bias"):
        open_checkpoint(path)
    wrong = {"blk.0.ffn_up.weight": np.zeros((95, 64), np.float32)}
    write_gguf(path, drop=tuple(wrong), extra=wrong)
    with pytest.raises(ConfigError, match=r"up_proj.weight' has shape \[95, 64\], expected \[96, 64\]"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count = 8"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type = 'longrope'"),
    ],
)
def test_unsupported_settings_are_refused_h03(
    tmp_path: Path, write_gguf: Any, fields: dict[str, Any], said: str
) -> None:
    write_gguf(path := tmp_path / "x.gguf", fields=fields)
    with pytest.raises(ConfigError, match=re.escape(said)):
        open_checkpoint(path)


def test_untied_head_is_read(tmp_path: Path, write_gguf: Any) -> None:
    write_gguf(path := tmp_path / "x.gguf", tie_word_embeddings=False)
    assert not GgufCheckpoint(path).config.tied
    write_gguf(path, tie_word_embeddings=True)
    assert GgufCheckpoint(path).config.tied


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("tied", [True, False])
def test_the_native_ledger_counts_what_is_kept(tmp_path: Path, write_gguf: Any, kind: Kind, tied: bool) -> None:
    """Of matrices of numbers no wider a copy is made than the file has."""
    native_library()
    _, weights = write_gguf(path := tmp_path / "x.gguf", kind, tie_word_embeddings=tied)
    table = GgufCheckpoint(path).matrix("model.embed_tokens.weight")
    if isinstance(table, torch.Tensor):
        assert table.itemsize == gguf.GGML_QUANT_SIZES[kind][1]
        torch.testing.assert_close(table.float(), weights["model.embed_tokens.weight"], rtol=0, atol=0)
    executor = NativeExecutor(None, Config(model=ModelConfig(path=str(path)), executor=ExecutorConfig(threads=1)))
    info = executor.load(print)
    assert executor._loaded is not None
    kept = executor._loaded.network.ops.weight_bytes()  # type: ignore[attr-defined]
    executor.close()
    assert info.memory["weights"] == kept
