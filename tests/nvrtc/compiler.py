"""NVRTC through ctypes: CUDA text -> cubin and ptxas' report, for any GPU, with no GPU and no driver.

The options are those CuPy compiles with, so this is what happens on a GPU but for loading the module.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

#: As ``cupy.RawModule`` passes them, and ptxas' report.
OPTIONS = ("-std=c++17", "-ftz=true", "--device-as-default-execution-space", "--ptxas-options=-v")
#: CUDA's major version -> the wheel with NVRTC, and the library in it.
WHEELS = {12: ("nvidia-cuda-nvrtc-cu12", "libnvrtc.so.12"), 13: ("nvidia-cuda-nvrtc", "libnvrtc.so.13")}


class CompileError(RuntimeError):
    """The text does not compile; the message is the compiler's."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas gave one kernel.  Bytes are per thread, but ``shared_bytes``, which is static shared memory of a
    block."""

    registers: int
    spilled_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """``mangled``: the name in the cubin of each name that was asked for."""

    cubin: bytes
    mangled: dict[str, str]
    resources: dict[str, Resources]


def file_of(wheel: str, name: str) -> Path:
    """A file of an installed wheel.  Raises FileNotFoundError naming the wheel."""
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"{name} is missing: pip install {wheel}")


class Compiler:
    """NVRTC of one major version of CUDA."""

    def __init__(self, cuda: int) -> None:
        self._library = ctypes.CDLL(str(file_of(*WHEELS[cuda])))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def compile(self, text: str, names: Sequence[str], arch: int, options: Sequence[str] = ()) -> Compiled:
        """``names``: kernels, or instances of template kernels.  Raises CompileError."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
        try:
            for name in names:
                self._call("nvrtcAddNameExpression", program, name.encode())
            flags = [option.encode() for option in (*OPTIONS, *options, f"-arch=sm_{arch}")]
            failed = self._library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            log = self._text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program).decode()
            if failed:
                raise CompileError(f"sm_{arch}: {log}")
            mangled = {}
            for name in names:
                lowered = ctypes.c_char_p()
                self._call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(lowered))
                assert lowered.value is not None
                mangled[name] = lowered.value.decode()
            cubin = self._text("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program)
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))
        resources = _resources(log)
        return Compiled(cubin, mangled, {name: resources[low] for name, low in mangled.items()})

    def _text(self, size_call: str, call: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_call, program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(call, program, buffer)
        return buffer.raw

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CompileError(f"{name}: {self._library.nvrtcGetErrorString(code).decode()}")


@cache
def compiler(cuda: int) -> Compiler:
    """Loaded once: the library has 100 MB."""
    return Compiler(cuda)


def _resources(log: str) -> dict[str, Resources]:
    """ptxas' verbose report by mangled name."""
    found: dict[str, Resources] = {}
    for name, report in re.findall(
        r"Compiling entry function '(\S+)'(.*?)(?=Compiling entry function|\Z)", log, re.DOTALL
    ):
        numbers = {
            key: int(hit[1]) if (hit := re.search(pattern, report)) else 0
            for key, pattern in (
                ("registers", r"Used (\d+) registers"),
                ("stores", r"(\d+) bytes spill stores"),
                ("loads", r"(\d+) bytes spill loads"),
                ("stack", r"(\d+) bytes stack frame"),
                ("shared", r"(\d+) bytes smem"),
            )
        }
        found[name] = Resources(
            numbers["registers"], numbers["stores"] + numbers["loads"], numbers["stack"], numbers["shared"]
        )
    return found
