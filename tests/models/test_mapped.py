"""The writer and reader of converted weights: what they write is plain safetensors, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mainspring.plugins.models.mapped import MappedTensors, write_tensors

SHAPES = {"a": (3, 5), "norm": (7,), "b": (4, 2, 2)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_written_is_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: torch.randn(shape).to(dtype) for name, shape in SHAPES.items()}
    order: list[str] = []

    def read(name: str) -> torch.Tensor:
        order.append(name)
        return tensors[name]

    with (path := tmp_path / "x.safetensors").open("wb") as file:
        write_tensors(file, SHAPES, dtype, read, lambda: f"{len(order):032}")
    assert order == list(SHAPES)
    theirs, ours = load_file(path), MappedTensors(path)
    assert ours.shapes == SHAPES
    assert ours.metadata == {"fingerprint": f"{3:032}"}
    for name, values in tensors.items():
        view = ours.read(name)
        ours.give_back()
        assert torch.equal(theirs[name], values) and torch.equal(view, values)


def test_files_of_safetensors_are_read_and_never_written(tmp_path: Path) -> None:
    save_file({"x": torch.arange(6.0).reshape(2, 3)}, path := tmp_path / "x.safetensors")
    MappedTensors(path).read("x").zero_()
    assert torch.equal(MappedTensors(path).read("x"), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("kept", [4, 8, 30, -1])
def test_damage_is_an_error(tmp_path: Path, kept: int) -> None:
    save_file({"x": torch.zeros(4)}, path := tmp_path / "x.safetensors")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"no header|cut off|JSON|Expecting|Unterminated|delimiter"):
        MappedTensors(path)
