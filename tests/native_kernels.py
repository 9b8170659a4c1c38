"""The native kernels for tests: built once per session, tests are skipped where they cannot be built."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from mainspring.plugins.executors import native_abi
from mainspring.plugins.executors.native_build import EMULATED, CannotBuild, InstructionSet, best_instruction_set, build


@cache
def _library(kind: InstructionSet | None) -> Any:
    extra = () if kind is None else ("-O1",)  # plain C++ takes the compiler long, and speed is not what it is for
    return native_abi.load(build(kind or best_instruction_set(), print, extra))


def native_library() -> Any:
    """For this machine's CPU."""
    return _or_skip(None)


def emulated_library() -> Any:
    """The layout of AVX512 in plain C++."""
    return _or_skip(EMULATED)


def _or_skip(kind: InstructionSet | None) -> Any:
    try:
        return _library(kind)
    except CannotBuild as error:
        pytest.skip(f"no native kernels: {error}")
