"""``mainspring ab``: play an experiment file and say what can be said."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from ...core.hookspecs import Register, hookimpl
from .command import FAILED, OK, add_json, print_json


class AbCommand:
    help = "play an experiment file: paired runs of two or more arms, and a verdict"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("experiment", type=Path, help="a TOML file, such as those in examples/")
        parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results and reports go")
        parser.add_argument("--resume", action="store_true", help="go on with the results that are in --out")
        parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from ..experiments.run import run  # every verb imports this module; what plays experiments costs a second
        from ..experiments.table import text

        def progress(line: str) -> None:
            if not args.quiet:
                sys.stderr.write(line + "\n")
                sys.stderr.flush()

        report = run(args.experiment, args.out, resume=args.resume, progress=progress)
        if args.json:
            print_json(msgspec.to_builtins(report))
        else:
            sys.stdout.write(text(report))
            sys.stdout.write(f"\n{args.out / 'report.html'}\n")
        return OK if report.complete else FAILED


@hookimpl
def register_commands(register: Register) -> None:
    register("ab", AbCommand)
