"""``mainspring config``: the configuration as it takes effect, each value with where it came from."""

from __future__ import annotations

import argparse
from typing import Any

from ...core.hookspecs import Register, hookimpl
from ..config_file import toml
from .command import OK, add_json, print_json, print_table
from .options import add_config, load_config

#: Values that must not end up in a terminal log or a bug report.
SECRETS = frozenset({"server.admin_key"})


class ConfigCommand:
    help = "show the effective configuration and the origin of every value"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        rows = [(key, _shown(key, value), origin) for key, value, origin in load_config(args).describe()]
        if args.json:
            print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        else:
            print_table(("KEY", "VALUE", "ORIGIN"), [(key, toml(value), origin) for key, value, origin in rows])
        return OK


def _shown(key: str, value: Any) -> Any:
    return "********" if key in SECRETS and value else value


@hookimpl
def register_commands(register: Register) -> None:
    register("config", ConfigCommand)
