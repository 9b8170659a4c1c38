"""The torch backend against the plain reference, on one mixed step of ragged rows, for both number formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.executors.mixed_steps import NUM_BLOCKS, mixed_steps

from mainspring.plugins.executors import torch_views
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.executors.plain_ops import PlainOps
from mainspring.plugins.executors.torch_ops import TorchOps
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.tiny import CONFIG, random_weights

BLOCK = 4
MODEL = from_hf(CONFIG, (), "tiny", "test")


def backends(dtype: torch.dtype, kv_dtype: torch.dtype) -> list[tuple[Llama, Any]]:
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope)
    kv = KVShape(MODEL.num_layers, NUM_BLOCKS, BLOCK, MODEL.num_kv_heads, MODEL.head_dim)
    weights = random_weights(MODEL)
    made: list[Any] = [kind(heads, kv, dtype, kv_dtype) for kind in (PlainOps, TorchOps)]
    return [(Llama(MODEL, weights.__getitem__, ops), ops) for ops in made]


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "rtol", "atol"),
    [
        (torch.float32, torch.float32, 1e-4, 1e-5),
        (torch.float32, torch.bfloat16, 2e-2, 5e-2),  # a key rounded the other way is half a percent off
        (torch.float32, torch.float16, 2e-3, 5e-3),
        (torch.float32, torch.int8, 2e-2, 5e-2),
        (torch.bfloat16, torch.bfloat16, 0.1, 0.25),
        (torch.bfloat16, torch.int8, 0.1, 0.25),
    ],
    ids=str,
)
@pytest.mark.parametrize("gather_limit", [None, 1])
def test_logits_agree(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    rtol: float,
    atol: float,
    gather_limit: int | None,
) -> None:
    if gather_limit is not None:
        monkeypatch.setattr(torch_views, "MAX_GATHER_BYTES", gather_limit)  # every decode row on its own
    with torch.inference_mode():
        (plain, plain_ops), (fast, fast_ops) = backends(dtype, kv_dtype)
        for batch in mixed_steps(MODEL.vocab_size, BLOCK):
            expected, made = plain.forward(plain_ops.prepare(batch)), fast.forward(fast_ops.prepare(batch))
            assert (expected is None) == (made is None)
            if expected is not None and made is not None:
                assert made.dtype == torch.float32
                torch.testing.assert_close(made, expected, rtol=rtol, atol=atol)
    assert fast_ops.weight_bytes() == plain_ops.weight_bytes()


def test_infinities_of_an_earlier_owner_do_not_reach_a_new_one_h11() -> None:
    """A block comes back with NaN behind the new sequence's end: padded attention must not multiply it."""
    with torch.inference_mode():
        (clean, clean_ops), (_, dirty_ops) = backends(torch.float32, torch.float32)
        dirty = Llama(MODEL, random_weights(MODEL).__getitem__, dirty_ops)
        dirty_ops.keys.fill_(torch.nan)
        dirty_ops.values.fill_(torch.nan)
        for batch in mixed_steps(MODEL.vocab_size, BLOCK):
            expected, made = clean.forward(clean_ops.prepare(batch)), dirty.forward(dirty_ops.prepare(batch))
            if expected is not None and made is not None:
                torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
