"""One uniform per (seed, position): Philox4x32-10, a counter-based generator, so a draw needs no state at all.

A request that is preempted, resumed, chunked differently or batched with others asks for the same counter and gets the
same number.  The key is the request's 64-bit seed, the counter the absolute position of the token to be drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
# Multipliers and key increments of the published generator, in the order of the counter's words 0 and 2 (key 0 and 1).
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint64)


def philox4x32(counter: Words, key: Words) -> Words:
    """Ten rounds of Philox on every column: counter ``(4, n)``, key ``(2, n)`` -> ``(4, n)``, 32-bit words."""
    even, odd = counter[0::2], counter[1::2]
    for _ in range(_ROUNDS):
        product = even * _MULTIPLIERS  # 32 x 32 bits: always fits
        high, low = product >> _SHIFT, product & _LOW
        even, odd = high[::-1] ^ odd ^ key, low[::-1]
        key = (key + _KEY_STEPS) & _LOW
    return np.stack((even[0], odd[0], even[1], odd[1]))


def uniforms(seeds: npt.NDArray[Any], positions: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Float64 in [0, 1) for each (seed, position) pair, from the top 53 bits of the first two output words."""
    seeds, positions = seeds.astype(np.uint64), positions.astype(np.uint64)
    none = np.zeros_like(positions)
    out = philox4x32(
        np.stack((positions & _LOW, positions >> _SHIFT, none, none)), np.stack((seeds & _LOW, seeds >> _SHIFT))
    )
    bits: Words = ((out[0] << _SHIFT) | out[1]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
