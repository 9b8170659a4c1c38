"""Tokens drawn in C++ are those of the standard sampler, whatever the parameters, ties and edges."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.draws import columns, random_parameters
from tests.native_kernels import emulated_library, native_library

from mainspring.core.errors import EngineFault
from mainspring.core.policy import SampleOutput, SamplerContext
from mainspring.plugins.executors.native_ops import NativeOps
from mainspring.plugins.executors.ops import HeadShape, KVShape
from mainspring.plugins.models.config_hf import from_hf
from mainspring.plugins.models.tiny import CONFIG
from mainspring.samplers.plan import SamplingPlan
from mainspring.samplers.standard import StandardSampler

MODEL = from_hf(CONFIG, (), "tiny", "test")
Logits = NDArray[np.float32]


@cache
def ops(threads: int = 2, *, emulated: bool = False) -> NativeOps:
    heads = HeadShape(MODEL.num_heads, MODEL.num_kv_heads, MODEL.head_dim, MODEL.rope)
    kv = KVShape(1, 2, 4, MODEL.num_kv_heads, MODEL.head_dim)
    library = emulated_library() if emulated else native_library()
    return NativeOps(heads, kv, library=library, threads=threads)


def plan(rows: int, **given: Any) -> SamplingPlan:
    """Parameters of ``rows`` rows; what is not given is off."""
    bans = given.pop("bans", ())
    made = columns(rows, **given)
    made |= {name: made[name].astype(np.float32) for name in ("temperature", "top_p", "min_p")}
    pairs = np.asarray(bans, np.int64).reshape(-1, 2)
    fields: dict[str, Any] = {**made, "greedy": made["temperature"] == 0}
    return SamplingPlan(**fields, banned_rows=pairs[:, 0].copy(), banned_ids=pairs[:, 1].copy())


def random_plan(rows: int, random: np.random.Generator, vocab: int) -> SamplingPlan:
    made = random_parameters(rows, random, vocab)
    pairs = random.choice(rows, 5), random.choice(vocab, 5)
    return plan(rows, **made, bans=np.stack(pairs, 1) if vocab > 10 else ())


def drawn(logits: Logits, made: SamplingPlan, threads: int = 2) -> SampleOutput:
    return ops(threads).draw(torch.from_numpy(logits.copy()), made)


def check(logits: Logits, made: SamplingPlan) -> None:
    """The same ids and the same failures; what failed rows hold is nobody's business."""
    expected = StandardSampler(None, SamplerContext(logits.shape[1])).run(torch.from_numpy(logits.copy()), made)
    found = drawn(logits, made)
    assert found.failed == expected.failed
    bad = [row for row, _ in expected.failed]
    assert np.delete(found.token_ids, bad).tolist() == np.delete(expected.token_ids, bad).tolist()


@pytest.mark.slow
def test_the_layout_of_avx512_draws_the_same() -> None:
    random = np.random.default_rng(5)
    for vocab in (1, 17, 100, 3001):
        logits, made = random.standard_normal((20, vocab)).astype(np.float32), random_plan(20, random, vocab)
        found = ops(emulated=True).draw(torch.from_numpy(logits.copy()), made)
        assert found == drawn(logits, made)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("vocab", [1, 2, 100, 3000])
def test_any_mix_of_parameters(vocab: int, seed: int) -> None:
    """Below 2,048 tokens weights take more bits than rounding by an addition has."""
    random = np.random.default_rng(seed)
    logits = (random.standard_normal((40, vocab)) * random.choice([0.1, 3, 30])).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)  # many equals, and -0.0 beside 0.0
    check(logits, random_plan(40, random, vocab))


def test_a_real_vocabulary() -> None:
    random = np.random.default_rng(0)
    for spread in (0.0, 0.5, 3.0, 8.0):
        logits = (random.standard_normal((24, 49152)) * spread).astype(np.float32)
        check(logits, random_plan(24, random, 49152))


def test_a_row_draws_the_same_in_any_batch_and_with_any_threads() -> None:
    random = np.random.default_rng(1)
    logits, made = random.standard_normal((9, 5000)).astype(np.float32), random_plan(9, random, 5000)
    together = drawn(logits, made).token_ids
    assert drawn(logits, made, threads=1).token_ids == together
    for row in range(9):
        columns = {
            name: getattr(made, name)[row : row + 1] for name in ("temperature", "top_k", "top_p", "min_p", "uniform")
        }
        bans = np.asarray([(0, one) for at, one in zip(made.banned_rows, made.banned_ids, strict=True) if at == row])
        alone = plan(1, **columns, bans=bans)
        assert drawn(logits[row : row + 1], alone).token_ids == [together[row]]


def test_a_banned_token_and_a_huge_temperature() -> None:
    """Everything possible lies close together, and one token infinitely far off."""
    logits = np.random.default_rng(7).standard_normal((4, 3001)).astype(np.float32)
    for temperature in (1e4, 1e30):
        check(logits, plan(4, temperature=temperature, uniform=[0.0, 0.3, 0.9, 1 - 2**-53], bans=[(0, 2), (1, 3000)]))


def test_rows_without_a_usable_logit_are_named() -> None:
    logits = np.zeros((6, 70), np.float32)
    logits[0, 3], logits[1, 4], logits[2], logits[3, 5], logits[3, 6] = np.nan, np.inf, -np.inf, np.inf, np.nan
    logits[5, 1:] = -np.inf
    for temperature in (0.0, 1.0):
        made = plan(6, temperature=temperature, uniform=0.0, bans=[(0, 3), (5, 0)])
        check(logits, made)
        found = drawn(logits, made)
        assert [row for row, _ in found.failed] == [0, 1, 2, 3, 5] and found.token_ids[4] == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"temperature": np.ones(2, np.float32)}, "for 3 rows"),
        ({"uniform": np.ones((3, 1))}, "for 3 rows"),
        ({"top_k": np.ones(3, np.int64)}, "for 3 rows"),
        ({"banned_rows": np.array([3]), "banned_ids": np.array([0])}, "banned tokens outside 3 rows of 8"),
        ({"banned_rows": np.array([0]), "banned_ids": np.array([8])}, "banned tokens"),
        ({"banned_rows": np.array([0]), "banned_ids": np.array([-1])}, "banned tokens"),
        ({"banned_rows": np.array([0, 1]), "banned_ids": np.array([0])}, "banned tokens"),
    ],
)
def test_a_plan_that_does_not_fit_never_reaches_cpp(change: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineFault, match=says):
        drawn(np.zeros((3, 8), np.float32), replace(plan(3), **change))
    with pytest.raises(EngineFault, match="expected float32 rows"):
        ops().draw(torch.zeros(3, 8, dtype=torch.float64), plan(3))
