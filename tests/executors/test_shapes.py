"""Shapes inside a real-sized model, computed on the ``meta`` device: nothing is stored."""

from __future__ import annotations

import torch

from mainspring.core.messages import GrantedRow, StepLaunch
from mainspring.plugins.executors.batch import Limits, build
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.executors.plain_ops import PlainOps
from mainspring.plugins.models.config import LlamaConfig
from mainspring.plugins.models.llama import Llama
from mainspring.plugins.models.rope import Rope

LLAMA_3_8B = LlamaConfig(
    name="Llama-3-8B",
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=14336,
    vocab_size=128256,
    norm_eps=1e-5,
    rope=Rope(500000.0),
    max_positions=8192,
    tied=False,
)


def test_llama_3_8b_shapes() -> None:
    seen: list[tuple[str, list[int]]] = []
    model = LLAMA_3_8B
    ops = PlainOps(
        HeadShape(model.num_heads, model.num_kv_heads, model.head_dim, model.rope),
        KVShape(model.num_layers, 4, 16, model.num_kv_heads, model.head_dim),
        torch.bfloat16,
        torch.bfloat16,
        device="meta",
        trace=lambda name, value: seen.append((name, list(value.shape))),
    )
    shapes = model.tensor_shapes()
    network = Llama(model, lambda name: torch.empty(shapes[name], device="meta"), ops, ops.trace)
    limits = Limits(model.vocab_size, model.max_positions, 4, 16)
    prompt = GrantedRow("a", 0, 6, (1, 2, 3, 4, 5, 6), True, (2,), tuple(range(32, 38)))
    network.forward(ops.prepare(build(StepLaunch(1, (prompt,), None), limits)))
    layer = [
        ("qkv", [6, 6144]),
        ("q", [6, 32, 128]),
        ("k", [6, 8, 128]),
        ("v", [6, 8, 128]),
        ("scores", [32, 6, 6]),
        ("gate", [6, 14336]),
        ("up", [6, 14336]),
    ]
    assert seen == [("hidden", [6, 4096]), *(layer * 32), ("logits", [1, 128256])]

    seen.clear()
    token = GrantedRow("a", 6, 1, None, True, (2,), (38,))
    network.forward(ops.prepare(build(StepLaunch(2, (token,), None), limits)))
    assert seen.count(("scores", [32, 1, 7])) == 32
    assert seen[0] == ("hidden", [1, 4096])
    assert ops.weight_bytes() == 2 * 8_030_261_248
