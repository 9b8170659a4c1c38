"""The torch and the native backend against the plain reference, on mixed steps of ragged rows, in every format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.executors.mixed_steps import NUM_BLOCKS, mixed_steps
from tests.native_kernels import emulated_library, native_library

from mainspring.plugins.executors import torch_views
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.native_step import NativeNetwork
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.executors.plain_ops import PlainOps
from mainspring.plugins.executors.torch_ops import TorchOps
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights

BLOCK = 4
MODEL = from_hf(CONFIG, (), "tiny", "test")
NATIVE: dict[str, Callable[[], Any]] = {"native": native_library, "emulated": emulated_library}


def made(kind: str, dtype: torch.dtype, kv_dtype: torch.dtype, weights: str = "fp32") -> tuple[Llama, Any]:
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope)
    kv = KVShape(MODEL.num_layers, NUM_BLOCKS, BLOCK, MODEL.num_kv_heads, MODEL.head_dim)
    if kind in NATIVE:
        library = NATIVE[kind]()
        ops: Any = NativeOps(heads, kv, kv_dtype, library=library, threads=2, weights=weights)
    else:
        ops = {"plain": PlainOps, "torch": TorchOps}[kind](heads, kv, dtype, kv_dtype)
    return Llama(MODEL, random_weights(MODEL).__getitem__, ops), ops


@pytest.mark.parametrize(
    ("kind", "dtype", "kv_dtype", "rtol", "atol"),
    [
        *(
            (kind, torch.float32, kv_dtype, rtol, atol)
            for kind in ("torch", "native", "emulated")
            for kv_dtype, rtol, atol in (
                (torch.float32, 1e-4, 1e-5),
                (torch.bfloat16, 2e-2, 5e-2),  # a key rounded the other way is half a percent off
                (torch.float16, 2e-3, 5e-3),
                (torch.int8, 2e-2, 5e-2),
            )
        ),
        ("torch", torch.bfloat16, torch.bfloat16, 0.1, 0.25),
        ("torch", torch.bfloat16, torch.int8, 0.1, 0.25),
    ],
    ids=str,
)
@pytest.mark.parametrize("gather_limit", [None, 1])
def test_logits_agree(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    rtol: float,
    atol: float,
    gather_limit: int | None,
) -> None:
    """Operator by operator; the native backend also as one call, which must say the same to the bit."""
    if gather_limit is not None:
        monkeypatch.setattr(torch_views, "MAX_GATHER_BYTES", gather_limit)  # every decode row on its own
    with torch.inference_mode():
        plain, plain_ops = made("plain", dtype, kv_dtype)
        fast, fast_ops = made(kind, dtype, kv_dtype)
        whole = NativeNetwork(*made(kind, dtype, kv_dtype)) if kind in NATIVE else None
        for batch in mixed_steps(MODEL.vocab_size, BLOCK):
            expected, got = plain.forward(plain_ops.prepare(batch)), fast.forward(fast_ops.prepare(batch))
            at_once = whole.forward(batch) if whole else got
            assert (expected is None) == (got is None) == (at_once is None)
            if expected is not None and got is not None and at_once is not None:
                assert got.dtype == torch.float32
                torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)
                assert torch.equal(at_once, got)
    assert fast_ops.weight_bytes() == plain_ops.weight_bytes()


@pytest.mark.parametrize("kind", ["torch", "native", "emulated"])
def test_infinities_of_an_earlier_owner_do_not_reach_a_new_one_h11(kind: str) -> None:
    """A block comes back with NaN behind the new sequence's end: padded attention must not multiply it."""
    with torch.inference_mode():
        (clean, clean_ops), (dirty, dirty_ops) = (made(name, torch.float32, torch.float32) for name in ("plain", kind))
        dirty_ops.keys.fill_(torch.nan)
        dirty_ops.values.fill_(torch.nan)
        for batch in mixed_steps(MODEL.vocab_size, BLOCK):
            expected, got = clean.forward(clean_ops.prepare(batch)), dirty.forward(dirty_ops.prepare(batch))
            if expected is not None and got is not None:
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
