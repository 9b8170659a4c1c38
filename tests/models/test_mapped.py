"""The writer and reader of converted weights: what they write is plain safetensors, one tensor in memory at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mainspring.plugins.models.llama import joined
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


def test_neighbours_become_one_view_and_strangers_a_copy(tmp_path: Path) -> None:
    """Query, key and value lie behind each other in the cache of weights: making one matrix of them costs nothing."""
    tensors = {name: torch.randn(rows, 4) for name, rows in (("q", 6), ("k", 2), ("v", 2))}
    with (path := tmp_path / "x.safetensors").open("wb") as file:
        shapes = {name: tuple(values.shape) for name, values in tensors.items()}
        write_tensors(file, shapes, torch.float32, tensors.__getitem__, lambda: "0" * 32)
    mapped = MappedTensors(path)
    for names, copied in ((["q", "k", "v"], False), (["k", "v"], False), (["k", "q"], True), (["q", "v"], True)):
        made = joined([mapped.read(name) for name in names])
        assert torch.equal(made, torch.cat([tensors[name] for name in names]))
        assert (made.data_ptr() != mapped.read(names[0]).data_ptr()) is copied
    vectors = [torch.arange(3.0), torch.arange(2.0)]
    assert torch.equal(joined(vectors), torch.cat(vectors)) and torch.equal(joined(vectors[:1]), vectors[0])


def test_opening_a_model_imports_no_library_that_it_does_not_need() -> None:
    """They would cost a start tenths of a second to seconds each; dequantising and foreign decoders need them."""
    code = (
        "import sys, mainspring.plugins.executors.auto\n"
        "from mainspring.plugins.models.checkpoint import open_model\n"
        "open_model('')\n"
        "unwanted = {'gguf', 'transformers', 'huggingface_hub', 'tokenizers', 'sympy', 'jinja2'}\n"
        "sys.exit(sorted(unwanted & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
