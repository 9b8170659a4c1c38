"""The promise of the native kernels: a row's logits are the same to the bit whatever else is in the step, however its
prompt is cut, however deep the pool is scattered, and with any number of threads; in every format."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from tests.native_kernels import emulated_library, native_library

from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.native_step import NativeNetwork
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights

BLOCK = 8
NUM_BLOCKS = 1024
#: Odd sizes on purpose: no width is a multiple of a vector but those that quantised weights need.
SHAPES: dict[str, dict[str, Any]] = {
    "odd": {
        "head_dim": 10,
        "intermediate_size": 70,
        "vocab_size": 101,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "wide": {"head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 96},
    "windows": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": 70,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 16,
    },
}
FORMATS = [
    ("fp32", False, torch.float32),
    ("bf16", False, torch.bfloat16),
    ("q8", False, torch.float16),
    ("q4", False, torch.float32),
    ("q4", True, torch.int8),
    ("q8", True, torch.float32),
]
LENGTHS = (1, 7, 64, 65, 300, 700)


@cache
def prompts(vocab_size: int) -> list[list[int]]:
    random = Random(5)
    return [[random.randrange(vocab_size) for _ in range(length)] for length in LENGTHS]


def network(library: Any, shape: str, weights: str, fast: bool, kv_dtype: torch.dtype, threads: int) -> Any:
    model = from_hf(CONFIG | {"max_position_embeddings": 1024} | SHAPES[shape], (), "tiny", "test")
    heads = HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope, model.windows)
    kv = KVShape(model.num_layers, NUM_BLOCKS, BLOCK, model.num_kv_heads, model.head_dim)
    ops = NativeOps(heads, kv, kv_dtype, library=library, threads=threads, weights=weights, int8_activations=fast)
    return NativeNetwork(Llama(model, random_weights(model, 3).__getitem__, ops), ops)


class Sequences:
    """Sequences over scattered blocks of one network, stepped in any mixture."""

    def __init__(self, network: Any, seed: int) -> None:
        self.network, self.random = network, Random(seed)
        self.free = self.random.sample(range(NUM_BLOCKS), NUM_BLOCKS)
        self.tables: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}

    def step(self, rows: list[tuple[int, list[int]]]) -> dict[int, torch.Tensor]:
        """Append ids to sequences; the logits of each one's last."""
        ids, positions, slots, cu, contexts = [], [], [], [0], []
        for key, more in rows:
            start = self.done.get(key, 0)
            table = self.tables.setdefault(key, [])
            while len(table) * BLOCK < start + len(more):
                table.append(self.free.pop())
            for at, token in enumerate(more, start):
                ids.append(token)
                positions.append(at)
                slots.append(table[at // BLOCK] * BLOCK + at % BLOCK)
            self.done[key] = start + len(more)
            cu.append(len(ids))
            contexts.append(self.done[key])
        width = max(len(self.tables[key]) for key, _ in rows)
        tables = np.full((len(rows), width), -1, np.int32)
        for index, (key, _) in enumerate(rows):
            tables[index, : len(self.tables[key])] = self.tables[key]
        ends = np.asarray(cu, np.int32)
        batch = StepBatch(
            np.asarray(ids, np.int32), np.asarray(positions, np.int32), np.asarray(slots, np.int32), ends,
            np.asarray(contexts, np.int32), tables, ends[1:] - 1, len(rows), tuple(str(key) for key, _ in rows),
        )  # fmt: skip
        with torch.inference_mode():
            logits = self.network.forward(batch)
        return {key: logits[index] for index, (key, _) in enumerate(rows)}


def alone(made: Any, ids: list[int]) -> torch.Tensor:
    """The whole prompt in one step, nothing else in it."""
    return Sequences(made, 1).step([(0, ids)])[0]


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize(("weights", "fast", "kv_dtype"), FORMATS, ids=str)
@pytest.mark.parametrize("library", [native_library, emulated_library], ids=["native", "emulated"])
def test_a_row_is_the_same_to_the_bit_in_any_company(
    library: Any, shape: str, weights: str, fast: bool, kv_dtype: torch.dtype
) -> None:
    emulated = library is emulated_library
    if emulated and (shape, weights) not in (("odd", "q4"), ("wide", "q8"), ("windows", "fp32")):
        pytest.skip("the emulation is slow: each format once")
    kernels = library()
    single = network(kernels, shape, weights, fast, kv_dtype, 1)
    texts = prompts(SHAPES[shape].get("vocab_size", 128))[: 5 if emulated else None]
    expected = [alone(single, ids) for ids in texts]
    assert all(part.isfinite().all() for part in expected)
    assert not torch.equal(expected[0], expected[1])
    for threads, chunk in ((1, 1000), (3, 37)):  # all at once; then cut, mixed, spread over threads
        made = Sequences(network(kernels, shape, weights, fast, kv_dtype, threads), threads)
        left = dict(enumerate(texts))
        while left:
            rows = [(key, ids[: made.random.randint(1, chunk) if chunk < 1000 else None]) for key, ids in left.items()]
            made.random.shuffle(rows)
            got = made.step(rows)
            left = {key: ids[len(dict(rows)[key]) :] for key, ids in left.items() if len(ids) > len(dict(rows)[key])}
            for key in set(got) - set(left):
                assert torch.equal(got[key], expected[key]), (threads, chunk, len(texts[key]))


@pytest.mark.parametrize(("weights", "fast", "kv_dtype"), FORMATS, ids=str)
def test_one_to_64_equal_rows(weights: str, fast: bool, kv_dtype: torch.dtype) -> None:
    """Every number of rows of a tile: the same sequence up to 64 times in a step, two threads."""
    made = network(native_library(), "wide", weights, fast, kv_dtype, 2)
    ids = prompts(128)[3]
    for count in (1, 2, 3, 4, 5, 6, 7, 11, 13, 64):
        many = Sequences(made, count)
        many.step([(key, ids[:-1]) for key in range(count)])
        rows = torch.stack(list(many.step([(key, ids[-1:]) for key in range(count)]).values()))
        assert (rows == rows[0]).all()
        if count == 1:
            first = rows[0]
        assert torch.equal(rows[-1], first)
