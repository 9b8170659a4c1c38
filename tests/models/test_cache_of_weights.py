"""Converted weights are kept, mapped, and made again when damaged."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from mainspring.plugins.models.cache import cache_path, load_weights
from mainspring.plugins.models.checkpoint import Checkpoint, open_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path, write_gguf: Any) -> Checkpoint:
    write_gguf(tmp_path / "tiny.gguf", Kind.Q8_0)
    return open_checkpoint(tmp_path / "tiny.gguf")


def load(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, list[str]]:
    said: list[str] = []
    return load_weights(checkpoint, dtype, said.append, folder), said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_start_maps_the_same_numbers(checkpoint: Checkpoint, tmp_path: Path, dtype: torch.dtype) -> None:
    first, said = load(checkpoint, tmp_path, dtype)
    assert re.match(r"weights: \d+ tensors \(5 F32, 15 Q8_0\), \d+ MiB in 1 file", said[0])
    assert "converting GGUF Q8_0 weights" in said[1]
    assert said[2:5] == [f"converted {count} of 20 tensors" for count in (5, 10, 15)]
    assert "kept in" in said[-1]
    second, said = load(checkpoint, tmp_path, dtype)
    assert "mapped from" in said[-1]
    for name in checkpoint.config.tensor_shapes():
        assert torch.equal(first(name), second(name))
        assert torch.equal(second(name), checkpoint.read(name).to(dtype))


def test_another_file_or_format_is_another_entry(checkpoint: Checkpoint, tmp_path: Path, write_gguf: Any) -> None:
    before = cache_path(checkpoint, torch.float32, tmp_path)
    assert cache_path(checkpoint, torch.bfloat16, tmp_path) != before
    write_gguf(tmp_path / "tiny.gguf", Kind.Q4_0)
    assert cache_path(open_checkpoint(tmp_path / "tiny.gguf"), torch.float32, tmp_path) != before


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "text"])
def test_damaged_entry_is_made_again(checkpoint: Checkpoint, tmp_path: Path, damage: str) -> None:
    load(checkpoint, tmp_path)
    path = cache_path(checkpoint, torch.float32, tmp_path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    path.write_bytes({"cut": whole[:-100], "empty": b"", "flip": flipped, "text": b"hello"}[damage])
    read, said = load(checkpoint, tmp_path)
    assert "converting" in said[1]
    assert torch.equal(read("model.norm.weight"), checkpoint.read("model.norm.weight"))
    assert path.read_bytes() == whole


def test_two_may_convert_at_once(checkpoint: Checkpoint, tmp_path: Path) -> None:
    readers: list[Any] = []
    threads = [threading.Thread(target=lambda: readers.append(load(checkpoint, tmp_path)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(readers) == 4
    for read in readers:
        assert torch.equal(read("model.norm.weight"), checkpoint.read("model.norm.weight"))
    assert [file.suffix for file in (tmp_path / "weights").iterdir()] == [".safetensors"]


def test_a_folder_that_cannot_be_written_is_no_error(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("in the way")
    read, said = load(checkpoint, tmp_path)
    assert "could not be kept" in said[-1]
    assert torch.equal(read("model.norm.weight"), checkpoint.read("model.norm.weight"))
