"""Checks of the machine, the installation and the configuration: what is wrong, and how to mend it.

Each check answers with one ``Finding`` and never raises; what it could not find out is a finding too.
"""

from __future__ import annotations

import importlib
import shlex
import shutil
import socket
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from ..core.errors import MainspringError
from ..core.registry import Registry
from .chosen import check, chosen
from .executors import native_build
from .executors.memory import available_bytes
from .executors.native_build import CannotBuild, best_instruction_set, library_path
from .folders import cache_folder, journal_folder
from .models.checkpoint import open_model
from .settings import Config

State = Literal["ok", "warn", "fail"]

#: The folders of the package; in a checkout they are links, and some checkouts leave a text file in their place.
FOLDERS = ("core", "plugins", "schedulers", "allocators", "samplers")
MIN_PYTHON = (3, 11)
_GIB = 2**30
#: Besides the model's file: the interpreter with torch takes about half a GiB, and the KV pool wants some room.
_HEADROOM_BYTES = 1 * _GIB


class Finding(NamedTuple):
    """One line of the report; ``mend`` says what to do and is empty when all is well."""

    check: str
    state: State
    detail: str
    mend: str = ""


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= MIN_PYTHON:
        return Finding("python", "ok", f"{version} at {sys.executable}")
    return Finding("python", "fail", version, f"use Python {'.'.join(map(str, MIN_PYTHON))} or later")


def package(root: Path | None = None) -> Finding:
    """The installed package is whole: every folder is one, and the packaged configuration is really TOML."""
    root = root or Path(__file__).parents[1]
    missing = [name for name in FOLDERS if not (root / name / "__init__.py").is_file()]
    mend = "check out on a file system with symbolic links (git config core.symlinks true), or install the wheel"
    if missing:
        return Finding("package", "fail", f"{root}: not a folder with code: {', '.join(missing)}", mend)
    try:
        tomllib.loads((root / "plugins.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Finding("package", "fail", f"{root / 'plugins.toml'}: {error}", mend)
    return Finding("package", "ok", str(root))


def torch() -> Finding:
    try:
        module = importlib.import_module("torch")
        device = (
            module.cuda.get_device_name(0) if module.cuda.is_available() else f"CPU, {module.get_num_threads()} threads"
        )
    except Exception as error:  # noqa: BLE001 - a broken native library fails in many ways
        return Finding("torch", "fail", f"cannot be imported: {error}", "run `make setup`, or `pip install torch`")
    return Finding("torch", "ok", f"{module.__version__} ({device})")


def model(path: str) -> tuple[Finding, int]:
    """The model exists, can be read and is of a kind that we run (weights are not read); and its size in bytes."""
    mend = "set model.path to a readable GGUF file or Hugging Face folder"
    try:
        checkpoint = open_model(path)
        num_bytes = sum(file.stat().st_size for file in checkpoint.files)
    except MainspringError as error:
        return Finding("model", "fail", str(error), mend), 0
    except Exception as error:  # noqa: BLE001 - damaged files and missing libraries fail in many ways
        return Finding("model", "fail", f"{path or 'the default model'}: {type(error).__name__}: {error}", mend), 0
    return Finding("model", "ok", f"{checkpoint.format}, {_size(num_bytes)}, {checkpoint.path}"), num_bytes


def memory(need: int, free: int) -> Finding:
    """``free`` bytes of memory against ``need``, the size of the model's files."""
    detail = f"{_size(free)} free, the model's files take {_size(need)}"
    if free < need:
        return Finding("memory", "fail", detail, "free some memory, or serve a smaller model (model.path)")
    if free < need + _HEADROOM_BYTES:
        return Finding("memory", "warn", detail, "little is left for the KV cache: free some memory")
    return Finding("memory", "ok", detail)


def writable(check: str, folder: Path | None, key: str) -> Finding:
    """A file can be made in ``folder``, which is created for that, as the server would."""
    if folder is None:
        return Finding(check, "ok", f"not used ({key} is empty)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(check, "fail", f"{folder}: {error.strerror or error}", f"make it writable, or set {key}")
    return Finding(check, "ok", str(folder))


def port(host: str, number: int) -> Finding:
    """The server could listen there now."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        mend = "stop what listens there, or choose another with --set server.port=N"
        return Finding("port", "fail", f"{host}:{number}: {error.strerror or error}", mend)
    return Finding("port", "ok", f"{host}:{number} is free" if number else f"{host}, any free port")


def plugins(config: Config, where: str) -> Finding:
    """Every plugin that the configuration selects loads, fits its contract and accepts options and settings."""
    registry = Registry()
    problems: list[str] = []
    for choice in chosen(config):
        try:
            check(choice, config, registry, where)
        except MainspringError as error:
            problems.append(str(error))
        except Exception as error:  # noqa: BLE001 - the module of a plugin may raise anything
            problems.append(f"{choice.slot} {choice.use!r}: {type(error).__name__}: {error}")
    if problems:
        return Finding("plugins", "fail", "; ".join(problems), "`mainspring plugins` lists what there is")
    return Finding("plugins", "ok", ", ".join(f"{slot} {use}" for slot, use, _ in chosen(config)))


def device() -> Finding:
    """A CUDA device that the executor ``cupy`` could run on; none is no fault, one that cannot be used is a warning."""
    try:
        module = importlib.import_module("torch")
        from .executors.cupy_device import device_trouble

        trouble = device_trouble()
        if trouble is None:
            return Finding("device", "ok", str(module.cuda.get_device_name(0)))
        if not module.cuda.is_available():
            return Finding("device", "ok", f"none, so the model runs on the CPU: {trouble}")
    except Exception as error:  # noqa: BLE001 - a broken driver fails in many ways
        trouble = f"{type(error).__name__}: {error}"
    return Finding("device", "warn", trouble, "mend it, or set executor.use = 'torch'")


def compiler() -> Finding:
    try:
        command = native_build.compiler()
    except CannotBuild as error:
        return Finding("compiler", "warn", str(error), "native CPU kernels cannot be built: install g++, or set CXX")
    return Finding("compiler", "ok", shlex.join([shutil.which(command[0]) or command[0], *command[1:]]))


def kernels() -> Finding:
    """Which native CPU kernels this machine runs, and whether they have been built."""
    try:
        kind = best_instruction_set()
        path = library_path(kind)
    except CannotBuild as error:
        return Finding("kernels", "warn", f"none: {error}", "torch runs the model, slower")
    return Finding("kernels", "ok", f"{kind.name}, " + (f"in {path}" if path.exists() else "built at the first start"))


def examine(load: Callable[[], tuple[Config, str]]) -> Iterator[Finding]:
    """All findings, in the order in which to mend them.  ``load`` gives the configuration and its source's name."""
    yield python()
    yield package()
    yield torch()
    yield device()
    yield compiler()
    yield kernels()
    try:
        config, where = load()
    except MainspringError as error:
        yield Finding("config", "fail", str(error), "correct it; `mainspring config` shows what takes effect")
        config, where = Config(), "defaults"
    else:
        yield Finding("config", "ok", where)
    yield plugins(config, where)
    finding, num_bytes = model(config.model.path)
    yield finding
    yield memory(num_bytes, available_bytes())
    yield writable("cache", cache_folder(), "XDG_CACHE_HOME")
    yield writable("journal", journal_folder(config.journal), "journal.path")
    yield port(config.server.host, config.server.port)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / 2**20:.0f} MiB"
