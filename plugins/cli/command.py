"""What a verb of the command line is, and how verbs print: tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

#: Exit codes of a verb that ran.  Errors that it raises have their own, see ``core.__main__``.
OK, FAILED = 0, 1


class Command(Protocol):
    """A verb.  The factory that it registers takes no arguments; an object lives for one run."""

    @property
    def help(self) -> str:
        """One line for ``mainspring --help``."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the verb's own arguments to its sub-parser."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit code.  Raises ConfigError, PluginError or EngineFault for the caller to report."""


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON; objects without a JSON form become their text."""
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns; the last one is never padded."""
    table = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
