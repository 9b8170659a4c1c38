"""Arguments that become fields of a request: the same on every verb that generates."""

from __future__ import annotations

import argparse
from typing import Any

_FIELDS: dict[str, tuple[type, str]] = {
    "max-tokens": (int, "most tokens to generate"),
    "min-tokens": (int, "tokens before anything may stop it"),
    "temperature": (float, "0: greedy"),
    "top-k": (int, "0: off"),
    "top-p": (float, "1: off"),
    "min-p": (float, "0: off"),
    "seed": (int, "makes sampling repeatable"),
}


def add_request_fields(parser: argparse.ArgumentParser) -> None:
    """Add the sampling arguments; those that are not given stay out of the request."""
    for name, (kind, text) in _FIELDS.items():
        parser.add_argument(f"--{name}", type=kind, metavar=kind.__name__.upper(), help=text)
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text (may be repeated)")
    parser.add_argument("--ignore-eos", action="store_true", default=None, help="go on after the end-of-sequence token")


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The given arguments as request fields."""
    names = [*(name.replace("-", "_") for name in _FIELDS), "stop", "ignore_eos"]
    return {name: value for name in names if (value := getattr(args, name)) is not None}
