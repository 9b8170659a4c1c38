"""The generator gives the published numbers, in range, and the same in any company."""

from __future__ import annotations

import numpy as np
import pytest

from mainspring.samplers.philox import philox4x32, uniforms

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    columns = philox4x32(np.array([counter] * 3, np.uint64).T, np.array([key] * 3, np.uint64).T)
    assert columns.T.tolist() == [list(expected)] * 3


def test_the_first_uniform_is_made_of_the_top_53_bits() -> None:
    expected = (((0x6627E8D5 << 32) | 0xE169C58D) >> 11) / 2**53
    assert uniforms(np.array([0]), np.array([0])).tolist() == [expected]


def test_uniforms_lie_in_the_half_open_interval_and_are_spread_evenly() -> None:
    drawn = uniforms(np.full(100_000, 3, np.uint64), np.arange(100_000))
    assert drawn.dtype == np.float64
    assert 0.0 <= drawn.min() <= drawn.max() < 1.0
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 99 + 4 * (2 * 99) ** 0.5
    assert len(np.unique(drawn)) == 100_000


def test_all_64_bits_of_seed_and_position_count() -> None:
    seeds = [0, 1, 1 << 31, 1 << 32, 1 << 63, 2**64 - 1]
    positions = [0, 1, 1 << 31, 1 << 32, 1 << 40]
    pairs = [(seed, position) for seed in seeds for position in positions]
    drawn = uniforms(np.array([s for s, _ in pairs], np.uint64), np.array([p for _, p in pairs], np.int64))
    assert len(set(drawn.tolist())) == len(pairs)
    for (seed, position), value in zip(pairs, drawn.tolist(), strict=True):
        assert uniforms(np.array([seed], np.uint64), np.array([position])).tolist() == [value]
