"""Building the kernels: which instruction set, when anew, two processes at once, and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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

ROOT = Path(__file__).parents[2]
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


#: A compiler that notes each unit, and makes what it is asked for.
COMPILES = 'while [ "$1" != -o ]; do shift; done; echo made > "$2"'
FAILS = 'echo "x.cpp:1: error: no" >&2; exit 1'
#: One that does not come to an end, with a child as g++ has.
HANGS = 'sleep 600 & echo "pid $!" >> {log}; echo "pid $$" >> {log}; wait'


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """``compiler(body)`` puts a script in the place of g++, an empty cache beside it, and returns its log."""

    def use(body: str) -> Path:
        log, script = tmp_path / "log", tmp_path / "c++"
        note = f'case "$*" in *-dump*) exit;; *" -c "*) echo unit >> {log};; esac'
        script.write_text(f"#!/bin/sh\n{note}\n{body.format(log=log)}\n")
        script.chmod(0o755)
        log.write_text("")
        return log

    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in (native, native_build):
        monkeypatch.setattr(module, "best_instruction_set", lambda: EMULATED)  # any machine has it
    monkeypatch.setattr(native_build, "NVIDIA", tmp_path / "none")
    return use


def test_a_begun_build_is_joined(compiler: Callable[[str], Path], tmp_path: Path) -> None:
    log, said = compiler(COMPILES), list[str]()
    native_build.begin(Config())
    native_build.begin(Config())
    made = build(EMULATED, said.append)
    assert log.read_text().splitlines() == ["unit"] * len(native_build.UNITS)
    assert said[0] == "compiling the native kernels for emulated, once"
    assert said[1].startswith("compiled in ") and said[1].endswith(f" s, kept in {made}")
    assert list((tmp_path / "cache/mainspring/kernels").iterdir()) == [made]
    native_build.begin(Config())  # there it is
    assert build(EMULATED, said.append) == made
    assert len(log.read_text().splitlines()) == len(native_build.UNITS) and len(said) == 2


def test_engines_of_one_process_compile_once(compiler: Callable[[str], Path]) -> None:
    log = compiler(COMPILES)
    with ThreadPoolExecutor(4) as threads:
        made = {*threads.map(lambda _: build(EMULATED, lambda _line: None), range(8))}
    assert len(made) == 1 and len(log.read_text().splitlines()) == len(native_build.UNITS)


def test_a_begun_build_that_fails_is_reported_by_build(compiler: Callable[[str], Path], folder: Path) -> None:
    log, said = compiler(FAILS), list[str]()
    native_build.begin(Config())
    executor = AutoExecutor(None, Config(model=ModelConfig(path=str(folder))))
    executor.load(said.append)
    executor.close()
    reason = "the compiler failed: x.cpp:1: error: no"
    assert [line for line in said if reason in line] == [f"no native kernels: {reason}; torch runs the model"]
    assert log.read_text().splitlines() == ["unit"] * len(native_build.UNITS)
    with pytest.raises(CannotBuild, match=reason):  # tried anew
        build(EMULATED, said.append)
    assert len(log.read_text().splitlines()) == 2 * len(native_build.UNITS)


def test_an_engine_is_not_told_why_one_before_it_had_no_kernels(compiler: Callable[[str], Path]) -> None:
    compiler(FAILS)
    native_build.begin(Config())
    for making in [*native_build._makings.values()]:
        making.join()
    log = compiler(COMPILES)
    native_build.begin(Config())
    assert build(EMULATED, lambda _line: None).read_text() == "made\n"
    assert len(log.read_text().splitlines()) == len(native_build.UNITS)


def test_a_library_that_is_gone_again_is_made_again(compiler: Callable[[str], Path]) -> None:
    log = compiler(COMPILES)
    native_build.begin(Config())
    for making in [*native_build._makings.values()]:
        making.join()
    native_build.library_path(EMULATED).unlink()
    assert build(EMULATED, lambda _line: None).exists()
    assert len(log.read_text().splitlines()) == 2 * len(native_build.UNITS)


def test_a_forked_process_compiles_for_itself(compiler: Callable[[str], Path], tmp_path: Path) -> None:
    """It has none of the threads; and its end takes nothing from the process it came from."""
    compiler("sleep 1; " + COMPILES)
    code = (
        "import os, sys; from mainspring.plugins.executors import native_build as b; from mainspring.plugins.settings "
        "import Config; b.best_instruction_set = lambda: b.EMULATED; b.begin(Config()); child = os.fork();"
        "print(b.build(b.EMULATED, lambda line: None).exists(), flush=True);"
        "sys.exit(0) if not child else sys.exit(os.waitpid(child, 0)[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\nTrue\n", "")
    assert len(list((tmp_path / "cache/mainspring/kernels").iterdir())) == 1


@pytest.mark.parametrize("path", ["x" * 300, "~nosuchuser/x.gguf", "a\0b"])
def test_a_path_that_cannot_be_looked_up_is_left_to_whoever_opens_it(
    compiler: Callable[[str], Path], path: str
) -> None:
    compiler(COMPILES)
    native_build.begin(Config(model=ModelConfig(path=path)))
    assert not native_build._makings


def test_a_compiler_command_with_an_open_quote_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ 'x")
    native_build.begin(Config())
    with pytest.raises(CannotBuild, match=r"CXX = \"g\+\+ 'x\" is no command: No closing quotation"):
        native_build.compiler()


@pytest.mark.parametrize("use", ["torch", "cupy", "my.module:Executor", "auto"])
def test_nothing_is_begun_for_other_executors(
    compiler: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str
) -> None:
    compiler(COMPILES)
    (tmp_path / "driver").touch()
    monkeypatch.setattr(native_build, "NVIDIA", tmp_path / "driver")  # where auto may choose cupy
    native_build.begin(Config(executor=ExecutorConfig(use=use)))
    assert not native_build._makings and not (tmp_path / "cache").exists()


def test_nothing_is_begun_for_folders_and_what_is_not_there(
    compiler: Callable[[str], Path], folder: Path, tmp_path: Path
) -> None:
    compiler(COMPILES)
    for path in (folder, tmp_path / "none.gguf", "owner/name"):
        native_build.begin(Config(model=ModelConfig(path=str(path))))
    assert not native_build._makings and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("make_executor", ["None", "object"])
def test_an_engine_begins_before_torch_is_imported(make_executor: str) -> None:
    """And not at all for an executor that it does not choose by name."""
    code = f"""
import sys
from mainspring.plugins.executors import native_build
native_build.begin = lambda config: sys.exit(f"{{config.executor.use}} {{'torch' in sys.modules}}")
from mainspring import Engine
Engine(overrides=["journal.path=", "scheduler.use=none"], make_executor={make_executor})
"""
    ended = python(code)
    assert ("auto False" in ended.stderr) == (make_executor == "None")
    assert ("there is no such scheduler" in ended.stderr) == (make_executor == "object")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            "native_build.build(native_build.EMULATED, lambda _: signal.raise_signal(signal.SIGINT))",
            "KeyboardInterrupt",
        ),
        ("Engine(overrides=['journal.path=', 'scheduler.use=none'])", "there is no such scheduler"),
        (
            "serve.config_path = lambda args: signal.raise_signal(signal.SIGTERM); serves()",
            "ended with 143",
        ),
    ],
)
def test_an_exit_leaves_no_folder_and_no_process(
    compiler: Callable[[str], Path], tmp_path: Path, ends: str, said: str
) -> None:
    log = compiler(HANGS)
    code = f"""
import argparse, pathlib, signal, sys, time
from mainspring import Engine
from mainspring.plugins.cli import serve
from mainspring.plugins.executors import native_build
from mainspring.plugins.settings import Config
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
native_build.best_instruction_set = lambda: native_build.EMULATED
native_build.NVIDIA = pathlib.Path("/nowhere")
native_build.begin(Config())
while pathlib.Path({str(log)!r}).read_text().count("pid") < 4:
    time.sleep(0.01)

def serves():
    try:
        serve.ServeCommand().run(argparse.Namespace())
    except SystemExit as end:
        sys.exit(f"ended with {{end.code}}")

{ends}
"""
    assert said in python(code).stderr
    pids = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("pid")]
    assert len(pids) == 2 * len(native_build.UNITS)
    assert not [pid for pid in pids if running(pid)]
    assert list((tmp_path / "cache/mainspring/kernels").iterdir()) == []


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that runs ``code`` on this checkout."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def running(pid: int) -> bool:
    """Whether there is such a process; a dead one that nobody has waited for yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


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
