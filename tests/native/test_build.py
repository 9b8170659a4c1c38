"""Building the kernels: which instruction set, when anew, two processes at once, and without a compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.executors.architectures import write_tiny
from tests.native_kernels import native_library

from mainspring.core.config import ExecutorConfig
from mainspring.core.errors import ConfigError
from mainspring.plugins.executors import native, native_abi, native_build
from mainspring.plugins.executors.auto import AutoExecutor
from mainspring.plugins.executors.cores import usable_cores
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.native_build import (
    EMULATED,
    INSTRUCTION_SETS,
    CannotBuild,
    InstructionSet,
    best_instruction_set,
    build,
    cpu_flags,
    library_path,
)
from mainspring.plugins.models.tiny import write_tiny_model
from mainspring.plugins.settings import Config, ModelConfig

QUICK = ("-O0",)
ZEN_3 = frozenset({"avx2", "fma", "f16c", "bmi2", "sse4_2"})
ZEN_4 = ZEN_3 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni", "avx512_bf16"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (ZEN_3, "avx2"),
        (ZEN_3 | {"avx_vnni"}, "avxvnni"),
        (ZEN_4, "avx512"),
        (ZEN_4 - {"avx512bw"}, "avx2"),
    ],
)
def test_the_best_set_that_the_cpu_has(flags: frozenset[str], name: str) -> None:
    assert best_instruction_set(flags).name == name


def test_a_cpu_that_lacks_something_is_told_what() -> None:
    with pytest.raises(CannotBuild, match="the CPU lacks f16c, fma"):
        best_instruction_set(ZEN_3 - {"fma", "f16c"})
    assert cpu_flags(Path("/nowhere")) == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*INSTRUCTION_SETS, EMULATED], ids=lambda kind: kind.name)
def test_every_set_compiles_without_a_warning(kind: InstructionSet, tmp_path: Path) -> None:
    """Whether this CPU could run it or not."""
    native_library()  # skips without a compiler
    made = build(kind, print, (*QUICK, "-Werror"), tmp_path)
    assert made.stat().st_size > 10_000
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == [made.name]


@pytest.mark.slow
def test_two_processes_build_at_once(tmp_path: Path) -> None:
    native_library()
    code = (
        "import sys, pathlib; from mainspring.plugins.executors.native_build import *;"
        "print(build(best_instruction_set(), lambda line: None, ('-O0',), pathlib.Path(sys.argv[1])))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {process.communicate()[0].strip() for process in running}
    assert len(said) == 1
    assert native_abi.load(Path(said.pop())).ms_lanes() in (8, 16)


def test_sources_flags_and_compiler_are_in_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    kind = best_instruction_set()
    first = library_path(kind, folder=tmp_path)
    assert library_path(kind, folder=tmp_path) == first
    names = {first, library_path(kind, QUICK, tmp_path), library_path(EMULATED, folder=tmp_path)}
    sources = tmp_path / "sources"
    sources.mkdir()
    for source in native_build.SOURCES.iterdir():
        if source.is_file():
            (sources / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(native_build, "SOURCES", sources)
    assert library_path(kind, folder=tmp_path) == first
    (sources / "pool.hpp").write_text("// another\n")
    names.add(library_path(kind, folder=tmp_path))
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\necho "another version"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    names.add(library_path(kind, folder=tmp_path))
    assert len(names) == 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.parametrize(
    ("variable", "text"), [("no-such-compiler", "there is no C++ compiler"), ("", "CXX is empty"), ("false", "failed")]
)
def test_without_a_compiler_torch_runs_the_model_and_one_line_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv("CXX", variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    said: list[str] = []
    executor = NativeExecutor(None, Config(model=ModelConfig(path=str(folder))))
    info = executor.load(said.append)
    executor.close()
    assert info.detail.startswith("torch ")
    assert [line for line in said if "native" in line and text in line and "torch runs" in line]


@pytest.mark.slow
def test_another_family_runs_on_torch_and_one_line_says_so(tmp_path: Path) -> None:
    native_library()  # skips without a compiler
    write_tiny(tmp_path / "other", "GPT2LMHeadModel")
    said: list[str] = []
    executor = NativeExecutor(None, Config(model=ModelConfig(path=str(tmp_path / "other"))))
    info = executor.load(said.append)
    executor.close()
    assert info.detail.startswith("torch ")
    assert "the native kernels run this package's own families: other runs on torch" in said


def test_auto_without_kernels_names_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "best_instruction_set", lambda: best_instruction_set(frozenset()))
    executor = AutoExecutor(None, Config(model=ModelConfig(path=str(folder))))
    info = executor.load(lambda _: None)
    executor.close()
    assert "auto chose torch (not native: the CPU lacks avx2, bmi2, f16c, fma" in info.detail


@pytest.mark.parametrize(
    ("options", "text"), [({"weights": "q4"}, "weights = 'q4'"), ({"dtype": "fast"}, "dtype = 'fast'")]
)
def test_formats_of_the_kernels_are_refused_without_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], text: str
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = Config(executor=ExecutorConfig(**options), model=ModelConfig(path=str(folder)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"executor.{text} needs executor.use = 'native'"):
        NativeExecutor(None, config).load(print)


def test_a_quota_of_the_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    assert usable_cores(tmp_path, tmp_path) >= 1
    (tmp_path / "a/cpu.max").write_text("max 100000\n")
    (tmp_path / "a/b/cpu.max").write_text("50000 100000\n")
    assert usable_cores(tmp_path, tmp_path) == 1
