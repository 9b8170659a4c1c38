"""A step whose arrays are wrong in any way is refused in Python, by name; C++ never sees it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.mixed_steps import NUM_BLOCKS, mixed_steps
from tests.native_kernels import native_library

from mainspring.core.errors import EngineFault
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.native_step import NativeNetwork
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights

BLOCK = 4
MODEL = from_hf(CONFIG, (), "tiny", "test")
FIELDS = ("ids", "positions", "slot_mapping", "cu_seqlens", "context_lens", "block_tables", "logits_rows")


@cache
def network() -> NativeNetwork:
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope)
    kv = KVShape(MODEL.num_layers, NUM_BLOCKS, BLOCK, MODEL.num_kv_heads, MODEL.head_dim)
    ops = NativeOps(heads, kv, library=native_library(), threads=2)
    return NativeNetwork(Llama(MODEL, random_weights(MODEL).__getitem__, ops), ops)


def changed(batch: StepBatch, field: str, array: Any) -> StepBatch:
    return replace(batch, **{field: array})


@pytest.mark.parametrize(
    ("field", "index", "value", "text"),
    [
        ("ids", 0, 128, "outside the vocabulary of 128"),
        ("ids", -1, -1, "outside the vocabulary"),
        ("positions", 0, -1, "positions of a row"),
        ("positions", -1, 2**30, "positions of a row"),
        ("slot_mapping", 0, NUM_BLOCKS * BLOCK, "a slot outside the pool"),
        ("slot_mapping", 0, -2, "a slot outside the pool"),
        ("cu_seqlens", 0, 1, "do not cut"),
        ("cu_seqlens", 1, 10**6, "do not cut"),
        ("cu_seqlens", -1, 0, "do not cut"),
        ("context_lens", 0, 10**6, "positions of a row"),
        ("context_lens", 0, -1, "positions of a row"),
        ("block_tables", (0, 0), NUM_BLOCKS, "a block outside the pool"),
        ("block_tables", (0, 0), -1, "a block outside the pool"),
        ("logits_rows", 0, 10**6, "a row to sample outside"),
        ("logits_rows", 0, -1, "a row to sample outside"),
    ],
)
def test_each_wrong_index_has_its_message(field: str, index: Any, value: int, text: str) -> None:
    batch = mixed_steps(MODEL.vocab_size, BLOCK)[4]
    array = getattr(batch, field).copy()
    array[index] = value
    with pytest.raises(EngineFault, match=text):
        network().forward(changed(batch, field, array))


@pytest.mark.parametrize("field", FIELDS)
def test_wrong_lengths(field: str) -> None:
    batch = mixed_steps(MODEL.vocab_size, BLOCK)[4]
    array = getattr(batch, field)
    with pytest.raises(EngineFault):
        network().forward(changed(batch, field, array[:-1] if field != "logits_rows" else array[None]))


@given(
    step=st.integers(0, 11),
    field=st.sampled_from(FIELDS),
    where=st.floats(0, 1, exclude_max=True),
    value=st.one_of(st.integers(-5, 300), st.integers(-(2**31), 2**31 - 1)),
)
def test_any_changed_number_runs_or_raises(step: int, field: str, where: float, value: int) -> None:
    """Whatever is accepted is within bounds: the process lives, and the logits are numbers."""
    batch = mixed_steps(MODEL.vocab_size, BLOCK)[step]
    array = np.array(getattr(batch, field))
    if not array.size:
        return
    array.reshape(-1)[int(where * array.size)] = value
    try:
        logits = network().forward(changed(batch, field, array))
    except EngineFault:
        return
    assert logits is None or not logits.isnan().any()


def test_more_threads_than_there_is_room_for() -> None:
    """An exception, in a process that lives on; the threads that did start are ended."""
    native_library()
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "cannot start 20000 threads, 1 left"), done.stderr[-2000:]


#: Every thread reserves a stack, of which there is room for some dozens.
CROWDED = """
import resource, threading
from pathlib import Path
from mainspring.core.errors import EngineFault
from mainspring.plugins.executors import native_abi
from mainspring.plugins.executors.native_build import best_instruction_set, build
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.rope import Rope

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])

library = native_abi.load(build(best_instruction_set(), lambda line: None))
before = status("Threads:")
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize:") * 1024 + 2**29,) * 2)
try:
    NativeOps(HeadShape(2, 1, 8, Rope(10000.0)), KVShape(1, 4, 4, 1, 8), library=library, threads=20000)
except EngineFault as error:
    assert "cannot start 20000 threads (executor.threads)" in str(error)
    print(f"cannot start 20000 threads, {status('Threads:') - before + 1} left")
"""
