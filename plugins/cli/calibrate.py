"""``mainspring calibrate``: measure this machine's steps, for simulations that tell what would happen on it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.registry import Registry
from .command import OK, add_json, print_json, print_table
from .options import add_config, load_config


class CalibrateCommand:
    help = "measure how long steps take on this machine, fit the step-time model and write its coefficients"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--out", type=Path, metavar="FILE", help="TOML file to write (default: standard output)")
        parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds over the grid (default: 5)")
        parser.add_argument(
            "--policies", default="", metavar="NAME,...", help="whose cost to measure (default: every policy)"
        )
        parser.add_argument(
            "--processor-time",
            action="store_true",
            help="count what the executor's one thread computes, not the clock: for a machine with other work",
        )
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from ..step_time.calibrate import calibrate
        from ..step_time.files import dump

        if args.repeats < 1:
            raise ConfigError(f"--repeats {args.repeats}: expected a number of rounds from 1")
        config, registry = load_config(args).config, Registry()
        policies = [name for name in args.policies.split(",") if name]
        for name in policies:
            registry.resolve("scheduler", name)  # what is wrong here should not wait for the measurement
        if args.out is not None:
            _check_file(args.out)
        made = calibrate(config, registry, args.repeats, policies, _tell, None, args.processor_time)
        if args.out is not None:
            try:
                args.out.write_text(dump(made), encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"--out {args.out}: cannot be written: {error.strerror or error}") from error
        if args.json:
            print_json(msgspec.to_builtins(made))
        elif args.out is None:
            sys.stdout.write(dump(made))
        else:
            print_table(
                ("STEPS", "NUMBER", "MEDIAN ERROR %", "P90 %"),
                [
                    (name, error.steps, f"{100 * error.median:.1f}", f"{100 * error.p90:.1f}")
                    for name, error in made.validation.held_out.items()
                ],
            )
        return OK


def _check_file(path: Path) -> None:
    """Raises ConfigError if ``path`` cannot be written; leaves it as it is."""
    new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ConfigError(f"--out {path}: cannot be written: {error.strerror or error}") from error
    if new:
        path.unlink()


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


@hookimpl
def register_commands(register: Register) -> None:
    register("calibrate", CalibrateCommand)
