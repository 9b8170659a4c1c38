"""No clock, no I/O, no randomness of its own: seen in the source of a policy, and while its hooks run.

While a hook runs, clocks, the shared random generator, files, sockets and threads are replaced by functions that raise,
in their own modules and wherever the policy's modules hold them under another name.  Other threads are not affected.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import random
import socket
import sys
import threading
import time
from types import ModuleType, TracebackType
from typing import Any

from .strict import Desk

#: Modules that a policy's file may not import.
IMPURE_MODULES = frozenset(
    {
        "anyio",
        "asyncio",
        "concurrent",
        "ctypes",
        "cupy",
        "datetime",
        "gc",
        "importlib",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "requests",
        "secrets",
        "select",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "torch",
        "urllib",
        "uuid",
        "websockets",
    }
)
#: Names that lead around an import, or behind a view.
IMPURE_NAMES = frozenset({"__import__", "_behind", "breakpoint", "eval", "exec", "forced_length", "input", "open"})
#: What raises while a hook runs: module -> names.
_SEALED: dict[ModuleType, tuple[str, ...]] = {
    builtins: ("open", "input"),
    os: ("urandom", "getenv", "listdir", "stat"),
    random: tuple(name for name in random.__all__ if getattr(getattr(random, name), "__self__", None) is not None),
    socket: ("socket", "create_connection"),
    threading: ("Thread",),
    time: tuple(
        name for name in vars(time) if callable(getattr(time, name)) and not isinstance(getattr(time, name), type)
    ),
}


def impure_source(policy: type) -> list[str]:
    """What the files of ``policy`` and of its own bases import or name although no policy may: ``file:line: what``."""
    found: list[str] = []
    for kind in policy.__mro__:
        if kind is object or kind.__module__.startswith(__name__.rpartition(".plugins.")[0] + ".core."):
            continue
        try:
            lines, file = inspect.getsource(sys.modules[kind.__module__]), inspect.getsourcefile(kind)
        except (OSError, TypeError, KeyError):
            continue  # no source to read: the check at run time remains
        found += [f"{file}:{line}: {what}" for line, what in impure_lines(lines)]
    return sorted(set(found))


def impure_lines(source: str) -> list[tuple[int, str]]:
    """(line, what) of the impure imports and names in ``source``; imports for type checkers only are fine."""
    found: list[tuple[int, str]] = []
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += [
                (node.lineno, f"imports {name.name}") for name in node.names if _root(name.name) in IMPURE_MODULES
            ]
        elif isinstance(node, ast.ImportFrom) and not node.level and _root(node.module or "") in IMPURE_MODULES:
            found.append((node.lineno, f"imports {node.module}"))
        elif isinstance(node, ast.Name) and node.id in IMPURE_NAMES:
            found.append((node.lineno, f"uses {node.id}"))
        elif isinstance(node, ast.Attribute) and node.attr in IMPURE_NAMES:
            found.append((node.lineno, f"uses .{node.attr}"))
    return sorted(found)


def _root(module: str) -> str:
    return module.partition(".")[0]


class Seal:
    """Makes impure calls raise while a hook of ``policy`` runs, and remembers them at ``desk``."""

    def __init__(self, policy: type, desk: Desk) -> None:
        self._desk = desk
        self._places: list[tuple[dict[str, Any], str, Any, Any]] = []  # (namespace, name, real, replacement)
        replaced: dict[int, Any] = {}
        for module, names in _SEALED.items():
            for name in names:
                real = getattr(module, name)
                replaced[id(real)] = self._raising(f"{module.__name__}.{name}", real)
                self._places.append((vars(module), name, real, replaced[id(real)]))
        for kind in policy.__mro__:
            module_of = sys.modules.get(kind.__module__)
            if module_of is None or kind is object or module_of in _SEALED:
                continue
            for name, value in vars(module_of).items():
                if id(value) in replaced:
                    self._places.append((vars(module_of), name, value, replaced[id(value)]))

    def _raising(self, name: str, real: Any) -> Any:
        thread, desk = threading.get_ident(), self._desk

        def call(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != thread:
                return real(*arguments, **named)
            return desk.refuse("impure", f"{name}()")

        return call

    def __enter__(self) -> None:
        for namespace, name, _, replacement in self._places:
            namespace[name] = replacement

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for namespace, name, real, _ in self._places:
            namespace[name] = real
