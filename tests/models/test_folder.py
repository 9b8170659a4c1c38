"""Hugging Face folders, and wrong places (E-17, H-01, H-09, H-13, D-10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mainspring.core.errors import ConfigError
from mainspring.plugins.models.checkpoint import open_checkpoint
from mainspring.plugins.models.llama import check_repeated_head
from mainspring.plugins.models.tiny import random_weights, write_tiny_model


def test_shards_hold_what_one_file_holds(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "one")
    write_tiny_model(tmp_path / "three", shards=3)
    one, three = open_checkpoint(tmp_path / "one"), open_checkpoint(tmp_path / "three")
    assert len(three.files) == 3
    for name, values in random_weights(config).items():
        assert torch.equal(one.read(name), values)
        assert torch.equal(three.read(name), values)


def test_missing_and_truncated_shards_are_listed_h09(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, shards=3)
    second = tmp_path / "model-00002-of-00003.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole[:-10])
    with pytest.raises(ConfigError, match=f"{second.name}: is not a complete safetensors file"):
        open_checkpoint(tmp_path)
    second.unlink()
    with pytest.raises(ConfigError, match=f"names shards that are not there: {second.name}"):
        open_checkpoint(tmp_path)


def test_index_that_promises_too_much_h09(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    fields = json.loads(index.read_text())
    fields["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"names tensors that no shard holds: model\.extra\.weight"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("shard", ["../other/model.safetensors", "/etc/hostname", ".", "", 3, None, ["a"]])
def test_an_index_names_files_of_its_folder_h09(tmp_path: Path, shard: Any) -> None:
    write_tiny_model(tmp_path, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    fields = json.loads(index.read_text())
    fields["weight_map"]["model.norm.weight"] = shard
    index.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=r"weight_map\.model\.norm\.weight = .*expected a file of this folder"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "generation_config.json"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"3", b"\xff\xfe{", b"[" * 100_000, b'{"a": \x00}'])
def test_damaged_json_is_named(tmp_path: Path, name: str, damage: bytes) -> None:
    write_tiny_model(tmp_path, shards=2)
    (tmp_path / name).write_bytes(damage)
    with pytest.raises(ConfigError, match=rf"{name}: (is not valid JSON|expected a JSON object)"):
        open_checkpoint(tmp_path)


def test_a_mark_that_an_editor_put_first_is_no_part_of_the_json(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert open_checkpoint(tmp_path).config.num_layers == 2


@pytest.mark.parametrize(
    "tokenizer",
    [{"added_tokens": [3]}, {"added_tokens": [{"id": 1}]}, {"model": 3}, {"added_tokens": [{"content": []}]}],
)
def test_a_damaged_tokenizer_is_named(tmp_path: Path, tokenizer: dict[str, Any]) -> None:
    write_tiny_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"tokenizer\.json: is not a tokenizer"):
        open_checkpoint(tmp_path)


def _rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors.update({key: value for key, value in changes.items() if value is not None})
    save_file({key: tensors[key] for key in tensors if changes.get(key, 1) is not None}, file)


def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    _rewrite(tmp_path, **{"model.norm.weight": None})
    with pytest.raises(ConfigError, match=r"1 tensor\(s\) missing: model\.norm\.weight"):
        open_checkpoint(tmp_path)
    _rewrite(tmp_path, **{"model.norm.weight": torch.ones(64), "model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    with pytest.raises(ConfigError, match=r"no place for: model\.layers\.0\.self_attn\.q_proj\.bias"):
        open_checkpoint(tmp_path)
    write_tiny_model(tmp_path)
    _rewrite(tmp_path, **{"model.norm.weight": torch.ones(63)})
    with pytest.raises(ConfigError, match=r"'model.norm.weight' has shape \[63\], expected \[64\]"):
        open_checkpoint(tmp_path)


def test_tied_with_and_without_head_h01(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path)
    check_repeated_head(open_checkpoint(tmp_path))
    table = random_weights(config)["model.embed_tokens.weight"]
    _rewrite(tmp_path, **{"lm_head.weight": table.clone()})
    check_repeated_head(open_checkpoint(tmp_path))
    _rewrite(tmp_path, **{"lm_head.weight": table + 1})
    with pytest.raises(ConfigError, match=r"lm_head\.weight differs from the embedding"):
        check_repeated_head(open_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 16}, "6 attention heads cannot share 4"),
        ({"num_key_value_heads": 0}, "4 attention heads cannot share 0"),
        ({"num_key_value_heads": 8}, "4 attention heads cannot share 8"),
        ({"head_dim": 15}, "head_dim = 15"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "many"}, "hidden_size = 'many': expected a number"),
        ({"architectures": ["GPT2LMHeadModel"]}, "architectures = 'GPT2LMHeadModel' is not supported"),
        ({"attention_bias": "yes"}, "attention_bias = 'yes': expected true or false"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"eos_token_id": 128}, "end token id 128 is outside the vocabulary of 128"),
        ({"eos_token_id": "2"}, "eos_token_id = '2': expected an id or a list of ids"),
        ({"eos_token_id": [2, True]}, r"eos_token_id = \[2, True\]: expected an id"),
        ({"eos_token_id": {"id": 2}}, "expected an id or a list of ids"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000: expected at most 10000"),
        ({"hidden_size": 10**400}, "hidden_size = 1000.*that a model can have"),
        ({"rope_theta": float("inf")}, "rope_theta = inf"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            r"quantization_config\.quant_method = 'gptq' is not supported",
        ),
        ({"quantization_config": "gptq"}, "'gptq' is not supported"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_configurations_h03_h10_h13(tmp_path: Path, overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write_tiny_model(tmp_path, **overrides)


def test_key_value_heads_default_to_all_heads_h13(tmp_path: Path) -> None:
    assert write_tiny_model(tmp_path, num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize(
    ("tokenizer", "model", "generation", "expected"),
    [(2, None, None, (2,)), (2, 9, [2, 7], (2, 7, 9)), (None, [9], 7, (7, 9)), (None, None, None, ())],
)
def test_end_ids_of_all_sources_d10(
    tmp_path: Path, tokenizer: int | None, model: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    write_tiny_model(tmp_path, eos_token_id=model)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    if tokenizer is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
        vocabulary = {"added_tokens": [{"id": tokenizer, "content": "</s>"}], "model": {"vocab": {}}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert open_checkpoint(tmp_path).config.end_token_ids == expected


def test_missing_rope_base_is_noted_h12(tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path, rope_theta=None)
    assert config.rope.theta == 10000.0
    assert "rope_theta is missing" in config.notes[0]


def test_wrong_places_say_what_was_missing_e17(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(ConfigError, match="is empty"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"neither a config\.json nor"):
        open_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match=r"notes\.txt: is not a GGUF file \(it begins with b'hell'"):
        open_checkpoint(tmp_path / "notes.txt")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ConfigError, match=r"has a config\.json but no weights"):
        open_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: is not valid JSON"):
        open_checkpoint(tmp_path)
    write_tiny_model(tmp_path)
    (tmp_path / "model.safetensors").write_text("these are not weights")
    with pytest.raises(ConfigError, match=r"model\.safetensors: is not a complete safetensors file"):
        open_checkpoint(tmp_path)
