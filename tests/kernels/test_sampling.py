"""Tokens drawn without sorting are those of the standard sampler, whatever the parameters, ties and edges."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.draws import Columns, columns, random_parameters
from tests.emulator.module import RawModule, schedule

from mainspring.plugins.kernels.cuda.sampling import DRAWN, NAN, NEGATIVE, POSITIVE, Sampling
from mainspring.samplers.stages import ORDER, Prefix, RowParams, argmax, draw


@cache
def kernels() -> Sampling:
    return Sampling(RawModule)


def sample(logits: NDArray[np.float32], parameters: Columns) -> tuple[list[int], list[int]]:
    """Ids and states by the kernel."""
    rows, vocab = logits.shape
    ids, states = np.full(rows, -7, np.int32), np.full(rows, -7, np.int32)
    kernels().sample(ids, states, np.ascontiguousarray(logits), **parameters, rows=rows, vocab=vocab)
    return ids.tolist(), states.tolist()


def expected(logits: NDArray[np.float32], parameters: Columns) -> list[int]:
    """Ids by the standard sampler's stages over whole rows."""
    whole = torch.from_numpy(logits.copy())
    params = RowParams(
        *(torch.from_numpy(parameters[name].copy()) for name in ("temperature", "top_k", "top_p", "min_p", "uniform"))
    )
    params.top_k = params.top_k.long()
    greedy = params.temperature == 0
    params.temperature = torch.where(greedy, 1.0, params.temperature)
    prefix = Prefix(whole, whole.shape[1], params.temperature, with_total=False)
    for stage in ORDER:
        stage.cut(prefix, params)
    ids, settled = draw(prefix, params.uniform)
    assert settled.all()
    return torch.where(greedy, argmax(whole), ids).tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("vocab", [1, 2, 100, 3000])
def test_any_mix_of_parameters(vocab: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal((12, vocab)) * random.choice([0.1, 3, 30])).astype(np.float32)
    if seed % 2:
        logits = np.round(logits)  # many equals, and -0.0 beside 0.0
    parameters = random_parameters(12, random, vocab)
    with schedule(order=seed % 4, seed=seed):
        assert sample(logits, parameters) == (expected(logits, parameters), [DRAWN] * 12)


def test_every_place_of_a_row_can_be_drawn() -> None:
    """With a uniform in the middle of each token's share, each token comes out."""
    logits = np.log(np.array([[0.1, 0.4, 0.2, 0.2, 0.1]], np.float32))
    order = [1, 2, 3, 0, 4]
    ends = np.cumsum(np.exp(logits[0][order]))
    middles = ends - np.exp(logits[0][order]) / 2
    rows = np.repeat(logits, 5, 0)
    assert sample(rows, columns(5, uniform=middles))[0] == order
    assert sample(rows, columns(5, uniform=middles, top_k=1))[0] == [1] * 5
    assert set(sample(rows, columns(5, uniform=middles, top_p=0.6))[0]) == {1, 2}
    assert set(sample(rows, columns(5, uniform=middles, min_p=0.45))[0]) == {1, 2, 3}


def test_impossible_tokens_are_never_drawn() -> None:
    logits = np.full((4, 600), -np.inf, np.float32)
    logits[:, 17] = -80.0
    logits[1:, 590] = -81.0
    parameters = columns(4, uniform=[0.9999, 0.1, 0.9999, 0.9999], temperature=[1, 1, 1, 0])
    assert sample(logits, parameters)[0] == [17, 17, 590, 17]


def test_rows_without_a_usable_logit_are_named() -> None:
    logits = np.zeros((5, 70), np.float32)
    logits[0, 3], logits[1, 4], logits[2], logits[3, 5], logits[3, 6] = np.nan, np.inf, -np.inf, np.inf, np.nan
    for temperature in (0.0, 1.0):
        ids, states = sample(logits, columns(5, temperature=temperature, uniform=0.0))
        assert states == [NAN, POSITIVE, NEGATIVE, NAN, DRAWN]
        assert ids[4] == 0


def test_banned_tokens_become_impossible() -> None:
    """All pairs of more than one block of threads; a NaN stays one."""
    random = np.random.default_rng(3)
    logits = random.standard_normal((3, 200)).astype(np.float32)
    logits[1, 7] = np.nan
    places = np.append(random.choice(np.setdiff1d(np.arange(600), 207), 299, replace=False), 207)
    pairs = np.stack((places // 200, places % 200), 1).astype(np.int32)
    expected = logits.copy()
    expected[pairs[:-1, 0], pairs[:-1, 1]] = -np.inf
    with schedule(order=3, seed=1):
        kernels().ban(logits, pairs, num_pairs=len(pairs), vocab=200)
    assert np.array_equal(logits, expected, equal_nan=True)


def test_drawn_ids_become_inputs() -> None:
    ids, drawn = np.full(300, -7, np.int32), np.arange(1000, 1200, dtype=np.int32)
    pairs = np.stack((np.arange(200) + 50, np.arange(200)[::-1]), 1).astype(np.int32)
    kernels().take(ids, drawn, pairs, num_pairs=200)
    assert ids.tolist() == [-7] * 50 + list(range(1199, 999, -1)) + [-7] * 50


@pytest.mark.soak
def test_a_real_vocabulary() -> None:
    random = np.random.default_rng(0)
    logits = (random.standard_normal((24, 49152)) * 3).astype(np.float32)
    parameters = random_parameters(24, random, 49152)
    assert sample(logits, parameters)[0] == expected(logits, parameters)
