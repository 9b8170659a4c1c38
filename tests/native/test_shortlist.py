"""Greedy tokens by way of a shortlist: those of all logits, to the bit, whatever weights and rows."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.native.test_draw import plan
from tests.native.test_matrices import LIBRARIES, make, random_blocks
from tests.native_kernels import native_library

from mainspring.core.config import AllocatorConfig
from mainspring.plugins.executors import native_abi as abi
from mainspring.plugins.executors import native_shortlist
from mainspring.plugins.executors.batch import StepBatch
from mainspring.plugins.executors.native import NativeExecutor, Options
from mainspring.plugins.executors.native_draw import prepare_draw
from mainspring.plugins.executors.native_shortlist import FEW
from mainspring.plugins.executors.native_step import NativeNetwork
from mainspring.plugins.models.blocks import BlockMatrix, Matrix
from mainspring.plugins.settings import Config

Floats = Any


@pytest.fixture(autouse=True)
def _small_heads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_shortlist, "LEAST_WEIGHTS", 0)


class Head:
    """A network of no layers: row ``i`` of ``inputs`` ``[vocab, hidden]``, normed, meets the head as token ``i``."""

    def __init__(
        self, inputs: Floats, weight: Matrix, kept_as: str = "fp32", library: Any = None, threads: int = 2
    ) -> None:
        self.ops = make(library or native_library(), kept_as, threads=threads)
        self.vocab, hidden = inputs.shape
        self._kept = (
            self.ops.table(torch.from_numpy(np.ascontiguousarray(inputs, np.float32))),
            torch.ones(hidden),
            self.ops.pack(weight),
        )
        table, norm, head = self._kept
        self.struct = abi.Model(
            None, norm.data_ptr(), table.struct, head.struct, None, self.ops.kv, 0, hidden, 2, 1, self.vocab, 1e-6
        )
        self.shortlist = self.ops.shortlist(self.struct)

    def drawn(self, tokens: list[int], made: Any = None) -> tuple[list[int], list[int]]:
        """(ids, rows that failed), by the shortlist where that is possible."""
        draw = prepare_draw(made or plan(len(tokens), temperature=np.zeros(len(tokens))), len(tokens), self.vocab)
        self.struct.shortlist = None if self.shortlist is None else ctypes.pointer(self.shortlist.struct)
        self.ops.step(self.struct, self.ops.prepare(rows(tokens)), draw)
        found = draw.read()
        return found.token_ids, [row for row, _ in found.failed]

    def logits(self, tokens: list[int]) -> Floats:
        """All of them."""
        found = self.ops.step(self.struct, self.ops.prepare(rows(tokens)))
        assert found is not None
        return found.numpy()

    def check(self, tokens: list[int]) -> None:
        """The best of all logits, and the first of equals."""
        assert self.drawn(tokens) == (self.logits(tokens).argmax(1).tolist(), [])


def rows(tokens: list[int]) -> StepBatch:
    """Rows of one token each that see nothing but themselves."""
    nothing = np.zeros(len(tokens), np.int32)
    cuts, tables = np.arange(len(tokens) + 1, dtype=np.int32), np.full((len(tokens), 1), -1, np.int32)
    ids = np.asarray(tokens, np.int32)
    return StepBatch(ids, nothing, nothing - 1, cuts, nothing, tables, cuts[:-1].copy(), len(tokens), ())


def spread(vocab: int, hidden: int, seed: int, large: int = 8) -> tuple[Floats, Floats]:
    """Rows as networks have them, a few inputs far larger than the others; and weights that tokens differ by."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((vocab, hidden))
    inputs[:, random.choice(hidden, large, replace=False)] *= 40
    return inputs.astype(np.float32), random.standard_normal((vocab, hidden)).astype(np.float32)


@LIBRARIES
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("kept_as", "vocab", "hidden"), [("fp32", 777, 100), ("bf16", 320, 65), ("q8", 1001, 192)])
def test_numbers(library: Any, threads: int, kept_as: str, vocab: int, hidden: int) -> None:
    inputs, weight = spread(vocab, hidden, seed=hidden)
    head = Head(inputs, torch.from_numpy(weight), kept_as, library(), threads)
    for count in (1, 2, 7, 40):
        for first in range(0, vocab - count, vocab // 4):
            head.check([*range(first, first + count)])
    decided, in_vain, panels = head.ops.shortlisted()
    assert decided > in_vain
    assert panels > 0


@pytest.mark.parametrize(("kind", "hidden"), [("Q8_0", 96), ("Q6_K", 256)])
def test_blocks(kind: str, hidden: int) -> None:
    inputs, _ = spread(640, hidden, seed=1)
    head = Head(inputs, BlockMatrix(kind, (640, hidden), random_blocks(kind, 640, hidden, seed=2)), "file")
    for token in range(100):
        head.check([token, 3 * token])
    assert head.ops.shortlisted()[0] > 60


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.integers(33, 300),
    hidden=st.integers(2 * FEW, 130),
    kept_as=st.sampled_from(["fp32", "bf16"]),
    large=st.integers(0, 40),
    scales=st.lists(st.sampled_from([0, 1e-30, 1e-6, 1, 300, 1e12]), min_size=1, max_size=3),
    coarse=st.booleans(),
    size=st.sampled_from([1e-37, 1e-35, 1e-33, 1e-30, 1e-10, 1, 1e6]),
)
def test_any_weights(
    seed: int, vocab: int, hidden: int, kept_as: str, large: int, scales: list[float], coarse: bool, size: float
) -> None:
    """Outputs of very different sizes, equal ones, zeros, and weights that 4 bits hold exactly; rows of any size, also
    such that matrices of integers read nothing of them."""
    random = np.random.default_rng(seed)
    inputs, weight = spread(vocab, hidden, seed, large)
    inputs *= np.float32(size)
    weight[random.integers(0, vocab, vocab // 3)] = weight[random.integers(0, vocab, vocab // 3)]
    if coarse:
        weight = np.clip(np.round(weight * 4), -8, 7) / 8
    weight *= random.choice(scales, (vocab, 1))
    head = Head(inputs, torch.from_numpy(weight.astype(np.float32)), kept_as)
    for token in range(0, vocab, 7):
        head.check([token])
    head.check([*range(vocab)])


def coarse_weights(head: Head, hidden: int) -> Floats:
    """What the coarse head multiplies the first inputs and the others by, in its order, ``[vocab, hidden]``."""
    assert head.shortlist is not None
    found = []
    for part, width in ((head.shortlist.struct.few, FEW), (head.shortlist.struct.rest, hidden - FEW)):
        part.int8_activations = 0
        ones, out = np.eye(width, dtype=np.float32), np.empty((width, head.vocab), np.float32)
        head.ops._library.ms_linear(head.ops._engine, part, ones.ctypes.data, width, out.ctypes.data)
        found.append(out.T)
    return np.concatenate(found, axis=1)


def test_an_output_s_error_is_what_the_coarse_head_can_be_wrong_by() -> None:
    inputs, weight = spread(320, 128, seed=3, large=FEW)
    head = Head(inputs, torch.from_numpy(weight))
    assert head.shortlist is not None
    order = head.shortlist._order
    assert sorted(order) == [*range(128)]
    assert {*order[:FEW]} == {*np.argsort(-(inputs**2).sum(0))[:FEW]}
    coarse, exact = coarse_weights(head, 128).astype(np.float64), weight[:, order].astype(np.float64)
    apart = np.abs(exact - coarse)
    assert apart[:, FEW:].max() > 10 * apart[:, :FEW].max() > 0
    struct = head.shortlist.struct
    norms = [
        np.linalg.norm(apart[:, FEW:], axis=1),
        np.linalg.norm(apart[:, :FEW], axis=1) / struct.few_unit,
        np.maximum(np.linalg.norm(exact, axis=1), np.linalg.norm(coarse, axis=1)) / struct.size_unit,
    ]
    least = np.max(norms, axis=0)
    assert (head.shortlist._error >= least).all()
    assert (head.shortlist._error <= least * 1.001).all()


def test_the_coarse_head_alone_would_be_wrong() -> None:
    inputs, weight = spread(777, 128, seed=9, large=4)
    head = Head(inputs, torch.from_numpy(weight))
    best = [head.drawn([token])[0] for token in range(777)]
    assert best == head.logits([*range(777)]).argmax(1)[:, None].tolist()
    assert head.shortlist is not None
    head.shortlist._error[:] = 0
    assert best != [head.drawn([token])[0] for token in range(777)]


def test_rows_that_are_as_likely_everywhere_read_the_whole_head() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((640, 96)).astype(np.float32)
    head = Head(random.standard_normal((640, 96)), torch.from_numpy(weight * 1e-3 + weight[:1]))
    for token in range(100):
        head.check([token])
    decided, in_vain, _ = head.ops.shortlisted()
    assert decided == 0
    assert 1 < in_vain < 12  # it is tried less and less often


def test_a_row_of_nonsense_fails_by_itself() -> None:
    inputs, weight = spread(320, 96, seed=5)
    inputs[7, 3] = np.nan
    inputs[8, 90] = np.inf
    head = Head(inputs, torch.from_numpy(weight))
    best = head.logits([1, 2]).argmax(1).tolist()
    for row in (7, 8):
        ids, failed = head.drawn([1, row, 2])
        assert failed == [1]
        assert [ids[0], ids[2]] == best
    head.check([1])  # as if nothing had been


def test_whoever_wants_more_than_the_best_token_gets_it_from_all_logits() -> None:
    inputs, weight = spread(320, 96, seed=6)
    head = Head(inputs, torch.from_numpy(weight))
    best = int(head.logits([4]).argmax())
    second = int(np.argsort(-head.logits([4])[0])[1])
    assert head.drawn([4], plan(1, temperature=np.zeros(1), bans=[(0, best)])) == ([second], [])
    sampled = plan(2, temperature=np.asarray([0.0, 1.0]), uniform=np.asarray([0.0, 0.999]))
    assert head.drawn([4, 5], sampled)[0][0] == best
    assert head.ops.shortlisted() == (0, 0, 0)
    assert head.drawn([4]) == ([best], [])
    assert head.ops.shortlisted()[0] == 1


def test_rows_that_vanish_in_integers() -> None:
    """The coarse head reads zeros where float32 reads 1e-33."""
    random = np.random.default_rng(0)
    weight = np.where(random.integers(2, size=(320, 128)), -1, 1).astype(np.float32)
    for scale in (1e-37, 1e-35, 5e-34):
        head = Head(random.standard_normal((320, 128)) * scale, torch.from_numpy(weight))
        for token in range(100):
            head.check([token])


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e38])
def test_weights_that_are_no_use_make_no_shortlist(value: float) -> None:
    inputs, weight = spread(320, 96, seed=7)
    weight[17, 50] = value
    assert Head(inputs, torch.from_numpy(weight)).shortlist is None


@pytest.mark.parametrize(("kept_as", "hidden"), [("q4", 96), ("fp32", FEW + 31)])
def test_heads_that_are_small_already_get_none(kept_as: str, hidden: int) -> None:
    inputs, weight = spread(320, hidden, seed=8)
    head = Head(inputs, torch.from_numpy(weight), kept_as)
    assert head.shortlist is None
    head.check([1, 2, 3])


@pytest.mark.slow
def test_it_can_be_switched_off() -> None:
    """The embedded model's executor says what it takes either way, and tokens do not depend on it."""
    native_library()
    weights = {}
    for shortlist in (True, False):
        executor = NativeExecutor(Options(shortlist=shortlist), Config(allocator=AllocatorConfig(num_blocks=16)))
        info = executor.load(print)
        assert executor._loaded is not None and isinstance(executor._loaded.network, NativeNetwork)
        network = executor._loaded.network
        assert (network.shortlist is not None) == shortlist
        assert info.memory["weights"] == network.ops.weight_bytes()
        weights[shortlist] = network.ops.weight_bytes()
        executor.close()
    assert 15 << 20 < weights[True] - weights[False] < 20 << 20
