"""The shape of the code: core stays small, imports point one way, every module can be imported first (F-11)."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from importlinter import cli

ROOT = Path(__file__).parents[1]
FOLDERS = ("core", "plugins", "schedulers", "allocators", "samplers")
CORE_BUDGET = 1000  # lines of code that a person can read in an afternoon


def code_lines(source: str) -> int:
    """Lines that hold code: comments, docstrings and blank lines do not count, a statement's every line does."""
    counted: set[int] = set()
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            counted.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
                    assert docstring.end_lineno is not None
                    counted.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return len(counted)


def test_the_counter_counts_code_only() -> None:
    source = (
        '"""Module.\n\nMore.\n"""\n\n# why\nx = 1  # here\n\n\ndef f() -> str:\n    """Doc."""\n    return """a\nb"""\n'
    )
    assert code_lines(source) == 4


def test_core_is_below_its_budget() -> None:
    sizes = {file.name: code_lines(file.read_text(encoding="utf-8")) for file in sorted((ROOT / "core").rglob("*.py"))}
    total = sum(sizes.values())
    assert len(sizes) > 5
    assert total < CORE_BUDGET, f"core has {total} lines of code: {sizes}"


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert cli.lint_imports(config_filename="pyproject.toml", no_cache=True) == 0, capsys.readouterr().out


def mentions(file: Path) -> list[tuple[int, str]]:
    """(line, name) of every absolute import of a file, wherever it stands, and of every way round one."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = node.module.split(".")[0]
            # The class alone may be imported, to name the type of the generator that a policy is handed.
            found += [(node.lineno, module) for alias in node.names if (module, alias.name) != ("random", "Random")]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Random":
            found.append((node.lineno, "random"))
        elif isinstance(node, ast.Name) and node.id in DOORS:
            found.append((node.lineno, node.id))
    return found


#: What no policy may touch: it gets the time as an argument and a seeded generator, and does no I/O.
IMPURE = {
    "anyio",
    "asyncio",
    "cupy",
    "os",
    "pathlib",
    "random",
    "socket",
    "subprocess",
    "threading",
    "time",
    "websockets",
}
#: Ways round an import that the linter does not see.
DOORS = {"__import__", "eval", "exec", "importlib", "open"}


@pytest.mark.parametrize("folder", ["schedulers", "allocators", "samplers"])
def test_policies_import_nothing_impure(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 1
    found = [(str(file.relative_to(ROOT)), name) for file in files for _, name in mentions(file)]
    seeded = ("schedulers/host/lifecycle.py", "random")  # the host makes the generator that it hands to the policy
    assert [one for one in found if one[1] in IMPURE | DOORS and one != seeded] == []


def test_imports_inside_the_folders_are_relative() -> None:
    """An absolute import would reach the same file by a second name for the type checkers."""
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    found = [f"{file}:{line}" for file in files for line, name in mentions(file) if name in {*FOLDERS, "mainspring"}]
    assert found == []


def python(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds this checkout, whichever is installed, and nothing else of ``PYTHONPATH``."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_core_has_one_name_only() -> None:
    """From the root, ``import core`` would find the same files again and make a second set of classes."""
    done = python("-c", "import core")
    assert done.returncode != 0
    assert "import mainspring.core" in done.stderr


def public_modules() -> list[str]:
    """Every module of the package but the scripts that run when imported."""
    root = ROOT / "src" / "mainspring"
    files = [file for folder in FOLDERS for file in (root / folder).rglob("*.py")] + list(root.glob("*.py"))
    parts = [file.relative_to(root.parent).with_suffix("").parts for file in files]
    names = [".".join(part[:-1] if part[-1] == "__init__" else part) for part in parts]
    return sorted(name for name in names if not name.endswith("__main__"))


# A fresh interpreter for each module costs seconds where torch is involved.  A forked child of one that has only the
# third parties loaded is as fresh as far as our own modules are concerned, and costs milliseconds.
_IMPORT_EACH = """
import gc, importlib, os, sys, traceback
for name in "torch tokenizers gguf numpy websockets.asyncio.server structlog anyio msgspec".split():
    importlib.import_module(name)
gc.freeze()
failed = []
for module in sys.argv[1:]:
    assert not any(name.split(".")[0] == "mainspring" for name in sys.modules)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            importlib.import_module(module)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)
    if os.waitpid(child, 0)[1]:
        failed.append(module)
sys.exit(", ".join(failed) or 0)
"""


@pytest.mark.slow
def test_f11_every_module_can_be_imported_first() -> None:
    modules = public_modules()
    assert len(modules) > 20
    done = python("-c", _IMPORT_EACH, *modules, cwd=Path("/"))
    assert done.returncode == 0, done.stderr


def test_f11_the_light_modules_import_in_a_really_fresh_interpreter_and_quickly() -> None:
    """The client and the contracts are imported by other programs: they must not drag torch in."""
    for module in ("mainspring.core.policy", "mainspring.plugins.client", "mainspring.core.__main__"):
        done = python("-c", f"import sys, {module}; sys.exit('torch' in sys.modules)", cwd=Path("/"))
        assert done.returncode == 0, f"{module}: {done.stderr or 'imports torch'}"


def test_the_soak_has_every_part() -> None:
    """``make soak`` goes folder by folder; a test marked so elsewhere would never run."""
    listed = re.search(r"^SOAK \?= ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed is not None
    files = (ROOT / "tests").rglob("test_*.py")
    marked = {
        file.relative_to(ROOT) for file in files if re.search(r"\bmark\.soak\b", file.read_text(encoding="utf-8"))
    }
    assert {"/".join(file.parts[:2]) for file in marked} == set(listed[1].replace("\\\n", " ").split())
