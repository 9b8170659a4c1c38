"""The options every verb has: which configuration file, and single values on top of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config_file import LoadedConfig, load

FILE = "plugins.toml"


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--set`` to a verb's parser."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"configuration (default: ./{FILE} if there is one, else the packaged one)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one value, e.g. --set server.port=9000",
    )


def packaged_config() -> Path:
    """The ``plugins.toml`` that ships with the package."""
    return Path(__file__).parents[2] / FILE


def config_path(args: argparse.Namespace) -> Path:
    """The file that ``load_config`` reads."""
    if args.config is not None:
        return Path(args.config)
    here = Path(FILE)
    return here if here.is_file() else packaged_config()


def load_config(args: argparse.Namespace) -> LoadedConfig:
    """The effective configuration for parsed arguments with ``add_config``.  Raises ConfigError."""
    return load(config_path(args), args.set)
