"""What the emulator refuses, reports and computes."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mainspring.plugins.kernels.cuda.source import unit

from . import module as emulator
from . import primitives
from .module import EmulatorError, RawModule, last, schedule

TEXT = (
    unit("values.cuh")
    + r"""
KERNEL axpy(float a, const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
KERNEL some_threads_only(int* o) { if (threadIdx.x < 16) __syncthreads(); o[threadIdx.x] = 1; }
KERNEL too_wide_a_mask(int* o) { if (threadIdx.x < 16) o[threadIdx.x] = __shfl_xor_sync(0xffffffffu, int(threadIdx.x),
1); } KERNEL outside_the_mask(int* o) { if (threadIdx.x < 16) o[threadIdx.x] = __shfl_sync(0xffffu, int(threadIdx.x),
20); } KERNEL two_lines(int* o) { if (threadIdx.x < 32) __syncthreads(); else
  __syncthreads(); o[threadIdx.x] = 1; }
KERNEL trapped(int* o) { if (o[threadIdx.x] == 0) __trap(); }
KERNEL never_waited(float* o, const uint4* x) {
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  uint4* s = carve.take<uint4>(32);
  copy_async_16(s + threadIdx.x, x + threadIdx.x, true);
  copy_async_commit();
  o[threadIdx.x] = ((float*)s)[threadIdx.x * 4];
}
KERNEL unset(float* o) {
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  float* s = carve.take<float>(32);
  o[threadIdx.x] = s[threadIdx.x];
}
KERNEL conflicts(u32* o, int stride) {
  DYNAMIC_SHARED(memory);
  Carve carve(memory);
  unsigned char* s = carve.take<unsigned char>(32 * 128);
  u32 r[4];
  ldmatrix_x4(r, s + threadIdx.x * stride);
  o[threadIdx.x] = r[0];
}
KERNEL counted(int* o) {
  int total = __syncthreads_count(threadIdx.x % 3 == 0);
  unsigned votes = __ballot_sync(0xffffffffu, threadIdx.x & 1);
  atomicAdd(o, 1);
  atomicMax(o + 1, int(threadIdx.x));
  int next = __shfl_down_sync(0xffffffffu, int(threadIdx.x) + 7, 1);
  if (threadIdx.x == 0) o[2] = total, o[3] = int(votes), o[4] = next;
}
"""
)
NAMES = [
    "axpy", "some_threads_only", "too_wide_a_mask", "outside_the_mask", "two_lines", "trapped", "never_waited", "unset",
    "conflicts", "counted",
]  # fmt: skip


@cache
def module() -> RawModule:
    return RawModule(code=TEXT, name_expressions=NAMES)


def run(name: str, *arguments: Any, threads: int = 32, shared_mem: int = 0) -> None:
    module().get_function(name)((1,), (threads,), arguments, shared_mem=shared_mem)


def at(array: NDArray[Any]) -> np.uint64:
    return np.uint64(array.ctypes.data)


def aligned(count: int, dtype: type) -> NDArray[Any]:
    """Zeros at an address that 16 divides."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 16, np.uint8)
    first = -raw.ctypes.data % 16
    return raw[first : first + count * np.dtype(dtype).itemsize].view(dtype)


def test_arguments_are_checked_against_the_signature() -> None:
    """CuPy would pass a Python float as a double, and the kernel read half of it."""
    x, y = np.ones(8, np.float32), np.ones(8, np.float32)
    run("axpy", np.float32(2), at(x), at(y), np.int32(8))
    assert (y == 3).all()
    with pytest.raises(TypeError, match="argument 0 is float64"):
        run("axpy", 2.0, at(x), at(y), np.int32(8))
    with pytest.raises(TypeError, match="argument 3 is int64"):
        run("axpy", np.float32(2), at(x), at(y), 8)
    with pytest.raises(TypeError, match="1 arguments, the kernel has 4"):
        run("axpy", np.float32(2))
    with pytest.raises(TypeError, match="cannot pass"):
        run("axpy", np.float32(2), x, at(y), np.int32(8))


def test_impossible_launches_are_refused() -> None:
    kernel, none = module().get_function("axpy"), (np.float32(2), None, None, np.int32(0))
    for grid, block, shared, says in [
        ((0,), (32,), 0, "empty grid"),
        ((1,), (2048,), 0, "1024 threads"),
        ((1,), (32,), 300_000, "227 KiB"),
    ]:
        with pytest.raises(EmulatorError, match=says):
            kernel(grid, block, none, shared_mem=shared)
    with pytest.raises(EmulatorError, match="none of the name expressions"):
        module().get_function("other")


def test_a_text_that_does_not_compile_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_CACHE", str(tmp_path))
    code = unit("values.cuh") + "KERNEL f(int* o) { nonsense x; }"
    with pytest.raises(EmulatorError, match="nonsense"):
        RawModule(code=code, name_expressions=["f"]).get_function("f")((1,), (1,), (None,))
    assert [file.suffix for file in tmp_path.iterdir()] == [".o"]  # the scheduler's, and no text


@pytest.mark.parametrize(
    ("name", "threads", "says"),
    [
        ("some_threads_only", 32, "deadlock.*16 of 32 threads exited"),
        ("too_wide_a_mask", 32, "deadlock"),
        ("outside_the_mask", 32, "shuffles from lane 20 outside mask 0000ffff"),
        ("two_lines", 64, "different lines"),
        ("trapped", 32, "__trap"),
    ],
)
@pytest.mark.parametrize("order", range(4))
def test_wrong_collectives_are_reported(name: str, threads: int, says: str, order: int) -> None:
    with schedule(order, seed=1), pytest.raises(EmulatorError, match=says):
        run(name, at(np.zeros(64, np.int32)), threads=threads)


def test_copies_have_to_be_waited_for() -> None:
    out, source = np.zeros(32, np.float32), aligned(128, np.float32)
    with pytest.raises(EmulatorError, match="not waited for"):
        run("never_waited", at(out), at(source), shared_mem=512)
    assert np.isnan(out[:1]).all()  # what is read before the wait is no number


def test_shared_memory_is_poisoned_and_counted() -> None:
    out = np.zeros(32, np.float32)
    run("unset", at(out), shared_mem=128)
    assert np.isnan(out).all()
    with pytest.raises(EmulatorError, match="needs 128 bytes, the launch gave 64"):
        run("unset", at(out), shared_mem=64)


def test_bank_conflicts_are_counted() -> None:
    out = np.zeros(32, np.uint32)
    run("conflicts", at(out), np.int32(16), shared_mem=4096)
    assert (last.ldmatrix, last.bank_conflicts) == (4, 0)
    run("conflicts", at(out), np.int32(128), shared_mem=4096)
    assert (last.ldmatrix, last.bank_conflicts) == (4, 28)
    with pytest.raises(EmulatorError, match="not 16-byte aligned"):
        run("conflicts", at(out), np.int32(8), shared_mem=4096)


def test_votes_and_atomics() -> None:
    out = np.zeros(5, np.int32)
    run("counted", at(out), threads=64)
    assert out[:3].tolist() == [64, 63, 22]
    assert out[3:].view(np.uint32).tolist() == [0xAAAAAAAA, 8]


def test_every_primitive() -> None:
    kernels = RawModule(code=primitives.TEXT, name_expressions=primitives.KERNELS)

    def launch(name: str, threads: int, arrays: list[NDArray[Any]], shared_bytes: int) -> list[NDArray[Any]]:
        own = []
        for array in arrays:
            copy = aligned(array.size, array.dtype.type)
            copy[:] = array.ravel()
            own.append(copy.reshape(array.shape))
        kernels.get_function(name)((1,), (threads,), tuple(at(array) for array in own), shared_mem=shared_bytes)
        return own

    found = primitives.check_all(launch)
    assert set(found) == set(primitives.KERNELS)
    assert all(found.values()), found


def test_conversions_of_every_half() -> None:
    """All 65,536 of them there and back."""
    every = np.arange(65536, dtype=np.uint16)
    text = (
        unit("values.cuh")
        + """
    KERNEL all_halves(float* f, float* b, const u16* x) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      f[i] = float_of(f16{x[i]}), b[i] = float_of(bf16{x[i]});
    }"""
    )
    f, b = np.zeros(65536, np.float32), np.zeros(65536, np.float32)
    kernel = RawModule(code=text, name_expressions=["all_halves"]).get_function("all_halves")
    kernel((256,), (256,), (at(f), at(b), at(every)))
    for made, kind in ((f, "f16"), (b, "bf16")):
        assert np.array_equal(made, primitives.floats_of(every, kind), equal_nan=True)


def test_built_kernels_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_CACHE", str(tmp_path))
    for _ in range(2):
        out = np.zeros(64, np.int32)
        RawModule(code=TEXT, name_expressions=["counted"]).get_function("counted")((1,), (64,), (at(out),))
        assert out[0] == 64
        assert len(list(tmp_path.glob("*.so"))) == 1
    assert not list(tmp_path.glob("*.cpp"))


def test_other_flags_are_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_EMULATOR_CACHE", str(tmp_path))
    monkeypatch.setattr(emulator, "_build", lambda arguments, target: target.touch())
    monkeypatch.setattr(ctypes, "CDLL", Path)
    for flags, libraries, runtimes in (("BASE", 2, 2), ("RUNTIME", 3, 3)):
        for more in ([], ["-DOTHER"]):
            monkeypatch.setattr(emulator, flags, [*getattr(emulator, flags), *more])
            RawModule(code=TEXT, name_expressions=["counted"]).build("counted")
        assert len(list(tmp_path.glob("*.so"))) == libraries
        assert len(list(tmp_path.glob("*.o"))) == runtimes
