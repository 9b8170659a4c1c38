"""Executors by the name of their format, and steps to give them: shared by the benchmarks of the native kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, ModelConfig

BLOCK = 16
#: Name -> executor and its options.
FORMATS: dict[str, tuple[type[TorchExecutor], dict[str, str]]] = {
    "torch": (TorchExecutor, {"weights": "fp32", "dtype": "fp32"}),
    "fp32": (NativeExecutor, {"dtype": "fp32"}),
    "bf16": (NativeExecutor, {"dtype": "bf16"}),
    "auto": (NativeExecutor, {}),
    "auto, KV fp16": (NativeExecutor, {"kv_dtype": "fp16"}),
    "auto, KV bf16": (NativeExecutor, {"kv_dtype": "bf16"}),
    "auto, KV int8": (NativeExecutor, {"kv_dtype": "int8"}),
    "fast": (NativeExecutor, {"dtype": "fast"}),
    "fast, KV fp32": (NativeExecutor, {"dtype": "fast", "kv_dtype": "fp32"}),
    "q8": (NativeExecutor, {"weights": "q8"}),
    "q8 fast": (NativeExecutor, {"weights": "q8", "dtype": "fast"}),
    "q4": (NativeExecutor, {"weights": "q4"}),
    "q4 fast": (NativeExecutor, {"weights": "q4", "dtype": "fast"}),
}


def load(name: str, threads: int, num_blocks: int, model: Path | None = None) -> TorchExecutor:
    """An executor that has loaded ``model`` (None: the embedded one); its network is ``network_of``."""
    kind, options = FORMATS[name]
    executor = kind(
        None,
        Config(
            model=ModelConfig(path=str(model or "")),
            executor=ExecutorConfig(threads=threads, **options),
            allocator=AllocatorConfig(block_size=BLOCK, num_blocks=num_blocks),
        ),
    )
    executor.load([].append)
    return executor


def network_of(executor: TorchExecutor) -> Any:
    """What runs its steps."""
    assert executor._loaded is not None
    return executor._loaded.network


def blocks_for(tokens: int) -> int:
    """Blocks that a sequence of so many tokens fills."""
    return -(-tokens // BLOCK)


def step(rows: list[tuple[int, list[int]]], sampled: int = 1, room: int = 0) -> StepBatch:
    """Rows of (tokens already there, new ids); the last ``sampled`` ids of each sample.  Each row has blocks of its own
    for ``room`` tokens at least: steps of the same rows and room find what earlier ones wrote."""
    counts = [len(ids) for _, ids in rows]
    per_row = blocks_for(max(room, *(start + len(ids) for start, ids in rows)))
    tables = np.arange(len(rows) * per_row, dtype=np.int32).reshape(len(rows), per_row)
    positions = np.concatenate([np.arange(start, start + len(ids)) for start, ids in rows]).astype(np.int32)
    owner = np.repeat(np.arange(len(rows)), counts)
    cu = np.cumsum([0, *counts]).astype(np.int32)
    return StepBatch(
        ids=np.asarray([token for _, ids in rows for token in ids], np.int32),
        positions=positions,
        slot_mapping=(tables[owner, positions // BLOCK] * BLOCK + positions % BLOCK).astype(np.int32),
        cu_seqlens=cu,
        context_lens=np.asarray([start + len(ids) for start, ids in rows], np.int32),
        block_tables=tables,
        logits_rows=np.concatenate([np.arange(end - sampled, end) for end in cu[1:]]).astype(np.int32),
        num_rows=len(rows),
        sampling_rids=tuple(map(str, range(len(rows)))),
    )
