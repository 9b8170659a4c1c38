"""Random networks in the shapes of published ones, and steps for them, without files, tokenizer or scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.ops import HeadShape
from mainspring.plugins.models.config import LlamaConfig
from mainspring.plugins.models.rope import Rope

BLOCK = 16


@dataclass(frozen=True)
class Shape:
    """A published model's sizes; ``name`` says which."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    theta: float
    tied: bool

    def config(self, layers: int = 0) -> LlamaConfig:
        """As a configuration, with fewer ``layers`` if that is not 0."""
        return LlamaConfig(
            name=self.name, num_layers=layers or self.layers, hidden_size=self.hidden, num_heads=self.heads,
            num_kv_heads=self.kv_heads, head_dim=self.head_dim, ffn_size=self.ffn, vocab_size=self.vocab,
            norm_eps=1e-5, rope=Rope(self.theta), max_positions=8192, tied=self.tied,
        )  # fmt: skip


SMOL = Shape("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152, 1e5, True)
LLAMA = Shape("Llama-3-8B", 32, 4096, 32, 8, 128, 14336, 128256, 5e5, False)


def with_small_vocabulary(shape: Shape) -> Shape:
    """With a vocabulary that a CPU multiplies quickly."""
    return replace(shape, vocab=2048)


def heads_of(config: LlamaConfig) -> HeadShape:
    return HeadShape(config.num_heads, config.num_kv_heads, config.head_dim, config.rope, config.windows)


def random_reader(config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> Callable[[str], torch.Tensor]:
    """Each tensor by name, the same for the same name, rounded to ``dtype``, scaled so that activations keep their
    size; made when it is asked for."""
    shapes = config.tensor_shapes()
    seeds = {name: seed for seed, name in enumerate(sorted(shapes))}

    def read(name: str) -> torch.Tensor:
        generator = torch.Generator(device).manual_seed(seeds[name])
        values = torch.randn(shapes[name], generator=generator, device=device, dtype=dtype)
        return values.mul_(shapes[name][1] ** -0.5) if len(shapes[name]) == 2 else values.mul_(0.1).add_(1)

    return read


def step(
    counts: Sequence[int], lengths: Sequence[int], tables: np.ndarray, ids: np.ndarray, sampling: Sequence[int]
) -> StepBatch:
    """Rows of ``counts`` tokens that end at ``lengths``, in blocks ``tables`` ``[rows, width]``; rows that sample."""
    starts = np.cumsum([0, *counts]).astype(np.int32)
    first = np.asarray(lengths) - np.asarray(counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    positions = (np.arange(starts[-1]) - starts[owner] + first[owner]).astype(np.int32)
    slots = tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK
    return StepBatch(
        ids=ids.astype(np.int32),
        positions=positions,
        slot_mapping=slots.astype(np.int32),
        cu_seqlens=starts,
        context_lens=np.asarray(lengths, np.int32),
        block_tables=tables.astype(np.int32),
        logits_rows=(starts[1:][list(sampling)] - 1).astype(np.int32),
        num_rows=len(counts),
        sampling_rids=tuple(str(row) for row in sampling),
    )


def scattered_tables(rows: int, tokens: int, seed: int = 0) -> np.ndarray:
    """Blocks for ``rows`` sequences of ``tokens`` tokens, in random order."""
    width = -(-tokens // BLOCK)
    return np.random.default_rng(seed).permutation(rows * width).reshape(rows, width)
