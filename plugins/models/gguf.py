"""GGUF files of the Llama network and its relatives: memory-mapped, block-quantised tensors dequantised on demand.

A file of architecture ``llama`` stores the rows of the query and key projections with the two rotary halves of each
head interleaved; ``read`` puts them back, so that what leaves here is laid out as in a Hugging Face folder.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.errors import ConfigError
from .blocks import BlockMatrix, Matrix
from .checkpoint import check_tensors
from .config import LlamaConfig
from .config_gguf import check_architecture, from_gguf
from .gguf_header import GgufTensor, read_header
from .mapped import DTYPES

Rows = TypeVar("Rows", np.float32, np.int32)

#: What the rotary frequencies are divided by: the way Llama 3's scaling is stored.
_DIVISORS = "rope_freqs.weight"
#: Types whose bytes are numbers of NumPy.
_PLAIN: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16}
#: GGUF name -> canonical name; those of a layer follow ``blk.N.`` and ``model.layers.N.``.
_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def canonical_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; an unknown name stays as it is."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP:
        return f"{_TOP[parts[0]]}.{parts[1]}"
    return name


def model_name(path: Path) -> str:
    """``SmolLM2-135M-Instruct.Q4_1.gguf`` -> ``SmolLM2-135M-Instruct``: the file without what it is stored as."""
    return re.sub(r"[-.](I?Q\d\w*|B?F16|F32)$", "", path.stem, flags=re.IGNORECASE)


def _numbers(tensor: GgufTensor) -> NDArray[np.float32]:
    """Its values, float32."""
    if tensor.type.name in _PLAIN:  # the native kernels read nothing else so: the import is a tenth of a second
        return tensor.data.view(_PLAIN[tensor.type.name]).astype(np.float32, copy=False)
    import gguf

    return np.asarray(gguf.dequantize(tensor.data, gguf.GGMLQuantizationType(tensor.type.number)), np.float32)


class GgufCheckpoint:
    """One GGUF file.  Refuses, by name and before reading weights, what this package cannot run (H-08)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = self._header = read_header(path)
        #: Every field of the file, vocabulary and merges included.
        self.metadata = header.metadata
        self._interleaved = check_architecture(header.metadata, str(path)) == "llama"
        self._tensors: dict[str, GgufTensor] = {canonical_name(tensor.name): tensor for tensor in header.tensors}
        divisors = tuple(self.read(_DIVISORS).flatten().tolist()) if _DIVISORS in self._tensors else ()
        self._tensors.pop(_DIVISORS, None)
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        vocab_size = shapes.get("model.embed_tokens.weight", (0,))[0]
        tokens = self.metadata.get("tokenizer.ggml.tokens", ())
        if len(tokens) > vocab_size > 0:
            raise ConfigError(
                f"{path}: tokenizer.ggml.tokens: {len(tokens)} tokens for {vocab_size} rows of token_embd.weight"
            )
        self.config: LlamaConfig = from_gguf(self.metadata, vocab_size, shapes, model_name(path), str(path), divisors)
        if divisors and len(divisors) != self.config.head_dim // 2:
            raise ConfigError(
                f"{path}: tensor {_DIVISORS!r} has {len(divisors)} values for {self.config.head_dim // 2} pairs"
            )
        check_tensors(self.config, shapes, str(path))

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    @property
    def types(self) -> Counter[str]:
        return Counter(tensor.type.name for tensor in self._tensors.values())

    @property
    def needs_conversion(self) -> bool:
        return True

    @property
    def format(self) -> str:
        """The commonest type of the matrices, for instance ``GGUF Q4_1``."""
        types = [tensor.type.name for tensor in self._tensors.values() if len(tensor.shape) > 1]
        return "GGUF " + max(sorted(set(types)), key=types.count)

    def read(self, name: str) -> torch.Tensor:
        """One tensor, float32, rows first."""
        self._header.give_back()
        tensor = self._tensors[name]
        values = _numbers(tensor).reshape(tensor.shape)
        if self._pairs(name):
            values = self._apart(name, values)
        return torch.from_numpy(np.array(values, order="C"))  # a copy: the map is read-only

    def stored(self, name: str) -> str:
        """What a tensor is stored as."""
        return self._tensors[name].type.name

    def matrix(self, name: str) -> Matrix:
        """One tensor: a matrix of blocks as it is, anything else as numbers of the type it is stored as."""
        tensor = self._tensors[name]
        if len(tensor.shape) != 2 or tensor.type.name in DTYPES:
            return self.read(name).to(DTYPES[tensor.type.name])
        self._header.give_back()  # what earlier matrices were packed from
        rows, width = tensor.shape
        order = self._apart(name, np.arange(rows, dtype=np.int32)) if self._pairs(name) else None
        return BlockMatrix(tensor.type.name, (rows, width), tensor.data, order)

    def _pairs(self, name: str) -> bool:
        """Whether the rotary halves of a tensor's rows are interleaved."""
        return self._interleaved and (".q_proj." in name or ".k_proj." in name)

    def _apart(self, name: str, rows: NDArray[Rows]) -> NDArray[Rows]:
        """Rows with the two halves of each head put behind each other."""
        heads = self.config.num_heads if ".q_proj." in name else self.config.num_kv_heads
        return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
