"""``mainspring doctor``: what is wrong with this installation and configuration, and how to mend it."""

from __future__ import annotations

import argparse
import sys

from ...core.hookspecs import Register, hookimpl
from ..doctor import examine
from .command import FAILED, OK, add_json, print_json
from .options import add_config, config_path, load_config


class DoctorCommand:
    help = "check machine, installation and configuration; exit code 1 if something must be mended"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        findings = []
        for finding in examine(lambda: (load_config(args).config, str(config_path(args)))):
            findings.append(finding)
            if not args.json:  # at once, since some checks take seconds
                sys.stdout.write(f"{finding.state:<5}{finding.check:<10}{finding.detail}\n")
                if finding.mend:
                    sys.stdout.write(f"{'':<15}-> {finding.mend}\n")
                sys.stdout.flush()
        if args.json:
            print_json([finding._asdict() for finding in findings])
        return FAILED if any(finding.state == "fail" for finding in findings) else OK


@hookimpl
def register_commands(register: Register) -> None:
    register("doctor", DoctorCommand)
