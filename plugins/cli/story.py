"""``mainspring story RID``: the life of one request, read from the journal files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ...core.hookspecs import Register, hookimpl
from ..folders import journal_folder
from ..journal import read_story
from ..story import Line, observe, tell
from .command import FAILED, OK, add_json, print_json, print_table
from .options import add_config, load_config

#: A long generation repeats itself: without --all, this many steps at each end are shown.
_SHOWN_STEPS = 3


class StoryCommand:
    help = "tell the life of one request from the journal"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("rid", help="the request id that the server reported")
        parser.add_argument(
            "--journal", type=Path, metavar="FOLDER", help="where the journal files are (default: as configured)"
        )
        parser.add_argument("--all", action="store_true", help="show every step of a long generation")
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        folder = args.journal or journal_folder(load_config(args).config.journal)
        if folder is None:
            sys.stderr.write(
                "no journal is written: journal.path is empty; set it, or name one with --journal FOLDER\n"
            )
            return FAILED
        entries = read_story(folder, args.rid)
        if not entries:
            sys.stderr.write(f"request {args.rid!r} is not in the journal files of {folder}\n")
            return FAILED
        lines, observed = tell(entries, args.rid), observe(entries, args.rid)
        if args.json:
            print_json({"rid": args.rid, "story": [line._asdict() for line in lines], "observed": observed})
            return OK
        shown = lines if args.all else _shorten(lines)
        print_table(("MS", "STEP", "WHERE", "WHAT"), [_row(line) for line in shown])
        sys.stdout.write("\n")
        print_table(("POINT", "OBSERVED"), [(point, _facts(facts)) for point, facts in observed.items()])
        return OK


def _row(line: Line) -> tuple[str, str, str, str]:
    return f"{line.seconds * 1e3:.2f}", str(line.number or "-"), line.where, line.what


def _shorten(lines: list[Line]) -> list[Line]:
    """Keep the first and the last few engine steps; one line stands for those between."""
    plans = [index for index, line in enumerate(lines) if line.number == 3]
    if len(plans) <= 2 * _SHOWN_STEPS + 1:
        return lines
    start, end = plans[_SHOWN_STEPS], plans[-_SHOWN_STEPS]
    hidden = Line(lines[start].seconds, 0, "...", f"{len(plans) - 2 * _SHOWN_STEPS} more steps (--all shows them)")
    return [*lines[:start], hidden, *lines[end:]]


def _facts(facts: dict[str, Any]) -> str:
    return ", ".join(_fact(name, value) for name, value in facts.items() if value not in (None, []))


def _fact(name: str, value: Any) -> str:
    if name.endswith("_s") and isinstance(value, int | float):
        return f"{name.removesuffix('_s')} {value * 1e3:.2f} ms"
    return f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}"


@hookimpl
def register_commands(register: Register) -> None:
    register("story", StoryCommand)
