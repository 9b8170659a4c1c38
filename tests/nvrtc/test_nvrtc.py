"""The compilers take the kernels, without spills, and the default model's are no worse than the table says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from . import table
from .compiler import CompileError, compiler
from .sass import read
from .shapes import default_units, every_unit
from .table import ARCHITECTURES, CUDA, Line, compare, faults, is_current, measure, regressions, wanted

LINE = Line("12.9", 90, "decode", 100, 0, 0, 1024, 8, 8, 200, "text")


@pytest.mark.slow
@pytest.mark.parametrize("unit", default_units(), ids=lambda unit: unit.label)
@pytest.mark.parametrize("arch", [80, 90])
def test_the_default_models_kernels(arch: int, unit: object) -> None:
    assert compare(measure(12, arch, unit), table.read()) == []  # type: ignore[arg-type]


def test_the_table_is_of_the_text_as_it_is() -> None:
    """Whoever changes a kernel compiles everything that changed: ``make nvrtc ARGS='--changed --write'``."""
    lines = table.read()
    held = [(cuda, arch, unit) for cuda in CUDA for arch in ARCHITECTURES for unit in every_unit(arch)]
    assert [(cuda, arch, unit.label) for cuda, arch, unit in held if not is_current(lines, cuda, arch, unit)] == []
    assert [line.key for line in lines.values() if not wanted(line)] == []
    assert [fault for line in lines.values() for fault in faults(line)] == []


def test_tensor_cores_are_used_where_they_should_be() -> None:
    """Every product of an attention kernel, and no other kernel, runs on them."""
    for line in table.read().values():
        assert (line.products > 0) == (line.matrix_loads > 0) == ("_mma<" in line.kernel), line
        # S = Q K: one product for 16 head dims, and as many for O = P V; with eight times the tokens in prefill.
        if line.kernel.startswith("decode_mma"):
            head_dim, tiles = (int(line.kernel.split(", ")[at]) for at in (2, 4))
            assert line.products == 2 * head_dim // 16 * tiles, line


def test_a_text_that_does_not_compile_is_shown() -> None:
    with pytest.raises(CompileError, match=r"sm_90: kernels.cu.*nonsense"):
        compiler(12).compile("__global__ void f() { nonsense x; }", ["f"], 90)


def test_spills_and_stack_are_seen() -> None:
    text = """__global__ void f(int* o, int n) {
      int x[64];
      for (int i = 0; i < 64; i++) x[o[i] & 63] = i;
      o[0] = x[n];
    }"""
    assert compiler(12).compile(text, ["f"], 90).resources["f"].stack_bytes == 256
    line = replace(LINE, spilled=8, arch=86, shared_bytes=2**17)
    assert faults(line) == [
        "decode for sm_86, CUDA 12.9: spilled 8 bytes",
        "decode for sm_86, CUDA 12.9: 131072 bytes of shared memory, a block can have 101376",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stack": 16}, "stack 16 bytes"),
        ({"registers": 129}, "129 registers, were 100"),
        ({"products": 7}, "7 products, were 8"),
        ({"matrix_loads": 9}, "9 matrix_loads, were 8"),
        ({"shared_bytes": 2048}, "2048 bytes of shared memory, were 1024"),
        ({"loop": 211}, "a loop of 211 instructions, was 200"),
    ],
)
def test_regressions_are_named(change: dict[str, int], says: str) -> None:
    (found,) = regressions(replace(LINE, **change), LINE)  # type: ignore[arg-type]
    assert found == f"decode for sm_90, CUDA 12.9: {says}"


def test_what_is_better_or_as_good_passes() -> None:
    better = replace(LINE, registers=104, loop=210, shared_bytes=512)
    assert regressions(better, LINE) == []
    assert compare([LINE], {}) == []
    assert compare([replace(LINE, stack=8)], {}) == ["decode for sm_90, CUDA 12.9: stack 8 bytes"]


def test_the_longest_loop_of_a_listing() -> None:
    listing = """
        .section .text.f,"ax",@progbits
.L_x_0:
        /*0000*/                   HMMA.16816.F32 R4, R4, R8, R4 ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0020*/                   LDSM.16.M88.4 R4, [R4] ;
        /*0030*/                   FFMA R1, R1, R1, R1 ;
        /*0040*/               @P1 BRA `(.L_x_1) ;
        /*0050*/                   BRA `(.L_x_2) ;
.L_x_2:
        /*0060*/                   EXIT ;
    """
    made = read(listing)["f"]
    assert (made.products, made.matrix_loads) == (1, 1)
    assert made.loop == Counter({"LDSM": 1, "FFMA": 1, "BRA": 1})
