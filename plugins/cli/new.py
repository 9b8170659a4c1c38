"""``mainspring new scheduler NAME``: an installable package to start a policy from."""

from __future__ import annotations

import argparse
import keyword
import sys
from pathlib import Path

from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.registry import Registry
from ..scaffold import kinds, render
from .command import OK


class NewCommand:
    help = "write an installable package with a policy, its tests, configuration and README"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("kind", choices=kinds(), help="what the package offers")
        parser.add_argument("name", help="the name that plugins.toml will use, for example lottery")
        parser.add_argument(
            "--path", type=Path, metavar="DIR", help="the new package's folder (default: ./NAME_KIND; must not exist)"
        )

    def run(self, args: argparse.Namespace) -> int:
        check_name(args.kind, args.name)
        folder = write(args.kind, args.name, args.path or Path(f"{args.name}_{args.kind}"))
        sys.stdout.write(
            f"wrote {folder}\n\n"
            f"  cd {folder}\n"
            f"  pip install -e '.[test]'\n"
            f"  pytest                       # its own tests\n"
            f"  pytest --policy {args.name}    # the laws of every policy\n"
            f"  mainspring serve --set {args.kind}.use={args.name}\n"
        )
        return OK


def check_name(kind: str, name: str) -> None:
    """Raise ConfigError if ``name`` cannot be used or is taken."""
    if not (name.isidentifier() and name.islower() and name.isascii()) or keyword.iskeyword(name):
        raise ConfigError(f"name {name!r}: use lower-case letters, digits and underscores, starting with a letter")
    for info in Registry().available(kind):
        if info.name == name:
            raise ConfigError(f"name {name!r}: there is a {kind} of that name already, from {info.origin}")


def write(kind: str, name: str, folder: Path) -> Path:
    """Write the package into ``folder``, which must not exist, and return it.  Raises ConfigError."""
    try:
        folder.mkdir(parents=True)
        for path, text in render(kind, name).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise ConfigError(f"--path {folder}: it exists already; nothing was written") from None
    except OSError as error:
        raise ConfigError(f"--path {folder}: cannot be written: {error.strerror or error}") from error
    return folder


@hookimpl
def register_commands(register: Register) -> None:
    register("new", NewCommand)
