"""One small launch of each kernel, with its check: for sanitizers, which need a process of their own, and for plants.

``python -m tests.kernels.scenarios [--plant NAME] SCENARIO...`` prints one line for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tests.emulator.module import RawModule

from mainspring.plugins.kernels.cuda.block_copies import BlockCopies
from mainspring.plugins.kernels.cuda.launch import Attention, MakeModule
from mainspring.plugins.kernels.cuda.names import AttentionSpec
from mainspring.plugins.kernels.cuda.row_ops import RowOps
from mainspring.plugins.kernels.cuda.sampling import Sampling

from .paged import TOLERANCE, error, gated, load, make, parts, poisoned, rms_normed, share, store, written
from .plants import PLANTS
from .support import decode, decode_shared, prefill


def _spec(dtype: str, kv_dtype: str, head_dim: int, **more: Any) -> AttentionSpec:
    return AttentionSpec(dtype, kv_dtype, head_dim, 16, 3, 1, **more)


def _decode(build: MakeModule, spec: AttentionSpec, window: int = 0) -> bool:
    case = written(spec, [0, 150], [1, 1], seed=1)
    made = decode(case, num_splits=2, window=window, kernels=Attention(build, spec))
    return error(made, spec.dtype, case.attention(window)) < TOLERANCE[spec.dtype]


def _prefill(build: MakeModule, spec: AttentionSpec, window: int = 0) -> bool:
    case = written(spec, [150, 0], [30, 2], seed=1)
    made = prefill(case, window=window, kernels=Attention(build, spec))
    return error(made, spec.dtype, case.attention(window)) < TOLERANCE[spec.dtype]


def _prefix(build: MakeModule, spec: AttentionSpec) -> bool:
    case = written(spec, [70, 70, 20, 100], [1] * 4, seed=1)
    shared = share(case, [0, 1, 3], 48)
    made = decode_shared(case, [shared], kernels=Attention(build, spec))
    return error(made, spec.dtype, case.attention()) < TOLERANCE[spec.dtype]


def _kv_write(build: MakeModule, spec: AttentionSpec) -> bool:
    case, twin = (make(spec, [5, 30], [1, 1], seed=2) for _ in range(2))
    twin.write()
    Attention(build, spec).kv_write(case.k, case.v, case.slots, case.pool, num_tokens=len(case.slots))
    return parts(case.pool) == parts(twin.pool)


def _rope_write(build: MakeModule, spec: AttentionSpec) -> bool:
    case = make(spec, [5, 30], [5, 30], seed=3)
    qkv = np.concatenate([case.q, case.k, case.v], 1)
    cos, sin = np.ones((1, spec.head_dim // 2), np.float32), np.zeros((1, spec.head_dim // 2), np.float32)
    positions = np.zeros(len(case.slots), np.int32)
    Attention(build, spec).rope_write(qkv, cos, sin, positions, case.slots, case.pool, num_tokens=len(case.slots))
    twin = make(spec, [5, 30], [5, 30], seed=3)
    twin.write()
    return qkv[:, :3].tobytes() == case.q.tobytes() and case.pool.keys.tobytes() == twin.pool.keys.tobytes()


def _rms_norm(build: MakeModule) -> bool:
    random = np.random.default_rng(0)
    x, residual, weight = (store(random.standard_normal(shape), "bf16") for shape in ((3, 576), (3, 576), (576,)))
    out = poisoned(x.shape, "bf16")
    RowOps(build, "bf16", 64).rms_norm(out, x, weight, 1e-5, rows=3, width=576, residual=residual)
    total = load(residual, "bf16")
    expected = rms_normed(total, load(weight, "bf16"), 1e-5)
    return error(out, "bf16", expected) < TOLERANCE["bf16"]


def _silu_mul(build: MakeModule) -> bool:
    x, out = store(np.random.default_rng(0).standard_normal((3, 2 * 1536)), "bf16"), poisoned((3, 1536), "bf16")
    RowOps(build, "bf16", 64).silu_mul(out, x, rows=3, width=1536)
    return error(out, "bf16", gated(load(x, "bf16"))) < TOLERANCE["bf16"]


def _norm_heads(build: MakeModule) -> bool:
    random = np.random.default_rng(0)
    qkv, query = store(random.standard_normal((2, 5, 80)), "bf16"), store(random.standard_normal(80), "bf16")
    made = qkv.copy()
    RowOps(build, "bf16", 80).norm_heads(made, query, query, 1e-6, num_tokens=2, num_heads=3, num_kv_heads=1)
    expected = rms_normed(load(qkv, "bf16")[:, :4], load(query, "bf16"), 1e-6)
    return error(made[:, :4], "bf16", expected) < TOLERANCE["bf16"]


def _copies(build: MakeModule) -> bool:
    source = np.arange(2 * 3 * 2048, dtype=np.int32).reshape(2, 3, 2048)
    target, pairs = np.zeros_like(source), np.array([[0, 2], [2, 0]], np.int32)
    BlockCopies(build).copy(
        source, target, pairs, num_pairs=2, num_layers=2, block_bytes=8192, source_blocks=3, target_blocks=3
    )
    return bool((target[:, [2, 0]] == source[:, [0, 2]]).all() and not target[:, 1].any())


def _sample(build: MakeModule) -> bool:
    """Likely tokens only, the last of them, the first of its equals; one is banned, and the ids become inputs."""
    logits = np.tile(np.array([-5, 3, 2, 2, -5], np.float32), (3, 200))
    logits[:, 700] = 4.0
    logits[:, 3] = 9.0
    temperature, top_k, one = np.array([1.0, 0.0, 1.0]), np.array([2, 0, 0], np.int32), np.ones(3)
    ids, states = np.full(3, -7, np.int32), np.full(3, -7, np.int32)
    kernels, vocab = Sampling(build), logits.shape[1]
    kernels.ban(logits, np.array([[0, 3], [1, 3], [2, 3]], np.int32), num_pairs=3, vocab=vocab)
    kernels.sample(ids, states, logits, temperature, top_k, one * 0.9, one * 0.3, one * 0.999, rows=3, vocab=vocab)
    inputs = np.full(4, -7, np.int32)
    kernels.take(inputs, ids, np.array([[3, 0], [1, 2]], np.int32), num_pairs=2)
    drawn = (ids.tolist(), states.tolist()) == ([1, 700, 996], [0, 0, 0])
    return drawn and inputs.tolist() == [-7, 996, -7, 1]


BF16, INT8, FP32 = _spec("bf16", "bf16", 64), _spec("bf16", "int8", 64), _spec("fp32", "fp32", 64)
CAPPED = _spec("bf16", "bf16", 80, windows=True, softcap=5.0)
#: Every kernel, and both layouts of shared memory: 64 dims are swizzled, 80 padded.
SCENARIOS: dict[str, Callable[[MakeModule], bool]] = {
    "kv_write": partial(_kv_write, spec=BF16),
    "kv_write_int8": partial(_kv_write, spec=INT8),
    "rope_write": partial(_rope_write, spec=BF16),
    "decode": partial(_decode, spec=FP32),
    "decode_mma": partial(_decode, spec=BF16),
    "decode_int8": partial(_decode, spec=INT8),
    "decode_window": partial(_decode, spec=CAPPED, window=20),
    "prefill": partial(_prefill, spec=FP32),
    "prefill_mma": partial(_prefill, spec=BF16),
    "prefill_int8": partial(_prefill, spec=INT8),
    "prefill_window": partial(_prefill, spec=CAPPED, window=20),
    "prefix": partial(_prefix, spec=BF16),
    "prefix_int8": partial(_prefix, spec=INT8),
    "rms_norm": _rms_norm,
    "silu_mul": _silu_mul,
    "norm_heads": _norm_heads,
    "copies": _copies,
    "sample": _sample,
}


def planted(plant: str | None) -> MakeModule:
    """``RawModule`` of the text with a bug in it, where the unit has its place."""

    def build(code: str, **more: Any) -> RawModule:
        if plant is not None and PLANTS[plant].old in code:
            code = PLANTS[plant].into(code)
        return RawModule(code=code, **more)

    return build


def main() -> None:
    """Run scenarios; a sanitizer that finds something ends the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plant")
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    arguments = parser.parse_args()
    for name in arguments.scenarios:
        print(name, "ok" if SCENARIOS[name](planted(arguments.plant)) else "WRONG", flush=True)


if __name__ == "__main__":
    main()
