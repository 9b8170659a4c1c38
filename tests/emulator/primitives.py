"""The primitives of ``intrin.cuh`` one by one, each with its answer from NumPy by the tables of the PTX manual.

They run on the emulator in the tests, and on a GPU first of all: what fails here explains everything that fails later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mainspring.plugins.kernels.cuda.source import unit

#: ``launch(kernel, threads, arrays, shared_bytes)`` runs one block on copies of the arrays and gives them back.
Launch = Callable[[str, int, list[NDArray[Any]], int], list[NDArray[Any]]]

TEXT = (
    unit("values.cuh")
    + r"""
template <class T> KERNEL product(float* d, const u32* a, const u32* b) {
  int l = threadIdx.x;
  u32 fragment[4] = {a[l * 4], a[l * 4 + 1], a[l * 4 + 2], a[l * 4 + 3]};
  float sum[4] = {d[l * 4], d[l * 4 + 1], d[l * 4 + 2], d[l * 4 + 3]};
  mma_16x8x16(sum, fragment, b[l * 2], b[l * 2 + 1], T());
  for (int i = 0; i < 4; i++) d[l * 4 + i] = sum[i];
}
KERNEL matrices(u32* plain, u32* transposed, u32* moved, const uint4* source) {
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  uint4* rows = carve.take<uint4>(32);
  copy_async_16(rows + threadIdx.x, source + threadIdx.x, true);
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
  u32 r[4];
  ldmatrix_x4(r, rows + threadIdx.x);
  for (int i = 0; i < 4; i++) plain[threadIdx.x * 4 + i] = r[i];
  moved[threadIdx.x] = movmatrix_trans(r[0]);
  ldmatrix_x4_trans(r, rows + threadIdx.x);
  for (int i = 0; i < 4; i++) transposed[threadIdx.x * 4 + i] = r[i];
}
KERNEL copies(uint4* out, const uint4* source) {  // a copy that is off leaves zeros
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  uint4* rows = carve.take<uint4>(32);
  copy_async_16(rows + threadIdx.x, source + threadIdx.x, threadIdx.x % 3 != 0);
  copy_async_commit();
  copy_async_wait<0>();
  out[threadIdx.x] = rows[threadIdx.x];
}
template <class T> KERNEL roundings(u16* single, u32* pairs, float* back, const float* x) {
  int i = threadIdx.x;
  single[i] = To<T>::from(x[i]).bits;
  pairs[i] = pack2(x[i], x[(i + 1) % 1024], T());
  back[i] = float_of(To<T>::from(x[i]));
}
template <class T> KERNEL widenings(u32* out, const u32* x) {
  int i = threadIdx.x;
  out[i * 4] = widen2<0, 1>(x[i], T()), out[i * 4 + 1] = widen2<2, 3>(x[i], T());
  out[i * 4 + 2] = widen2<0, 2>(x[i], T()), out[i * 4 + 3] = widen2<1, 3>(x[i], T());
}
KERNEL powers(float* out, const float* x) { out[threadIdx.x] = exp2_fast(x[threadIdx.x]); }
"""
)
KERNELS = [
    "product<f16>", "product<bf16>", "matrices", "copies", "roundings<f16>", "roundings<bf16>", "widenings<f16>",
    "widenings<bf16>", "powers",
]  # fmt: skip


def bits_of(x: NDArray[Any], kind: str) -> NDArray[np.uint16]:
    """float32 -> the bits of f16 or bf16, to nearest even; a NaN becomes 0x7fff."""
    x = np.ascontiguousarray(x, np.float32)
    if kind == "f16":
        with np.errstate(over="ignore", invalid="ignore"):
            made = x.astype(np.float16).view(np.uint16)
    else:
        whole = x.view(np.uint32)
        made = ((whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(
            np.uint16
        )
    return np.where(np.isnan(x), np.uint16(0x7FFF), made)


def floats_of(bits: NDArray[np.uint16], kind: str) -> NDArray[np.float32]:
    """The reverse, exactly."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def check_all(launch: Launch) -> dict[str, bool]:
    """Kernel -> whether its answer is right."""
    found = {}
    for kind in ("f16", "bf16"):
        found[f"product<{kind}>"] = _product(launch, kind)
        found[f"roundings<{kind}>"] = _roundings(launch, kind)
        found[f"widenings<{kind}>"] = _widenings(launch, kind)
    return {**found, "matrices": _matrices(launch), "copies": _copies(launch), "powers": _powers(launch)}


def _product(launch: Launch, kind: str) -> bool:
    random = np.random.default_rng(0)
    left, right, start = (random.integers(-8, 8, shape).astype(np.float32) for shape in ((16, 16), (16, 8), (16, 8)))
    expected = start + left @ right
    a, b = np.zeros((32, 4), np.uint32), np.zeros((32, 2), np.uint32)
    d, answer = np.zeros((32, 4), np.float32), np.zeros((32, 4), np.float32)
    for lane in range(32):
        g, t = lane // 4, lane % 4 * 2
        for i in range(8):  # row g, 8 further for i of 2, 3, 6, 7; column t + (i & 1), 8 further for i >= 4
            value = bits_of(left[g + 8 * (i // 2 % 2), t + (i & 1) + 8 * (i // 4)], kind).item()
            a[lane, i // 2] |= np.uint32(value) << np.uint32(16 * (i & 1))
        for i in range(4):
            value = bits_of(right[t + (i & 1) + 8 * (i // 2), g], kind).item()
            b[lane, i // 2] |= np.uint32(value) << np.uint32(16 * (i & 1))
            d[lane, i] = start[g + 8 * (i // 2), t + (i & 1)]
            answer[lane, i] = expected[g + 8 * (i // 2), t + (i & 1)]
    return bool((launch(f"product<{kind}>", 32, [d, a, b], 0)[0] == answer).all())


def _matrices(launch: Launch) -> bool:
    source = np.random.default_rng(0).integers(0, 65536, (32, 8)).astype(np.uint16)
    plain, turned, moved = np.zeros((32, 4), np.uint32), np.zeros((32, 4), np.uint32), np.zeros(32, np.uint32)
    made = launch("matrices", 32, [plain.copy(), turned.copy(), moved.copy(), source], 512)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for j in range(4):
            matrix = source[8 * j : 8 * j + 8].astype(np.uint32)
            plain[lane, j] = matrix[row, column] | matrix[row, column + 1] << 16
            turned[lane, j] = matrix[column, row] | matrix[column + 1, row] << 16
        moved[lane] = turned[lane, 0]
    return all((got == want).all() for got, want in zip(made, (plain, turned, moved), strict=False))


def _copies(launch: Launch) -> bool:
    source = np.random.default_rng(0).integers(1, 2**31, (32, 4)).astype(np.uint32)
    made = launch("copies", 32, [np.full((32, 4), 7, np.uint32), source], 512)[0]
    return bool((made == np.where(np.arange(32)[:, None] % 3 != 0, source, 0)).all())


def _roundings(launch: Launch, kind: str) -> bool:
    random = np.random.default_rng(0)
    x = random.integers(0, 2**32, 1024, dtype=np.uint64).astype(np.uint32)
    x[:512] &= 0xBFFFFFFF  # half of them below 2
    halves = random.integers(0, 31744, 256).astype(np.uint16)
    ties = floats_of(halves, kind).view(np.uint32) + np.uint32(0x1000 if kind == "f16" else 0x8000)
    x[256:512] = ties
    values = x.view(np.float32)
    values[np.abs(values) < 1.2e-38] = 0  # a device may flush what is not normal
    made = launch(
        f"roundings<{kind}>",
        1024,
        [np.zeros(1024, np.uint16), np.zeros(1024, np.uint32), np.zeros(1024, np.float32), values],
        0,
    )
    want, number = bits_of(values, kind), ~np.isnan(values)
    pair = want.astype(np.uint32) | np.roll(want, -1).astype(np.uint32) << np.uint32(16)
    both = number & np.roll(number, -1)
    back = np.array_equal(made[2][number], floats_of(want, kind)[number])
    nans = bool(np.isnan(made[2][~number]).all())
    return bool((made[0] == want)[number].all() and (made[1] == pair)[both].all()) and back and nans


def _widenings(launch: Launch, kind: str) -> bool:
    codes = np.arange(-128, 128).astype(np.int8)
    x = np.concatenate([np.random.default_rng(seed).permutation(codes) for seed in range(4)])
    made = launch(f"widenings<{kind}>", 256, [np.zeros((256, 4), np.uint32), x.view(np.uint32)], 0)[0]
    got = floats_of(np.ascontiguousarray(made).view(np.uint16), kind).reshape(256, 8)
    return bool((got == x.reshape(256, 4)[:, [0, 1, 2, 3, 0, 2, 1, 3]]).all())


def _powers(launch: Launch) -> bool:
    x = np.linspace(-40, 20, 1024, dtype=np.float32)
    x[0] = -1e30
    made = launch("powers", 1024, [np.zeros(1024, np.float32), x], 0)[0]
    want = np.exp2(x.astype(np.float64))
    return bool(made[0] == 0 and (np.abs(made - want) <= 4e-7 * want).all())
