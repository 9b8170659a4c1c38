"""``mainspring chat``: talk to a served model in the terminal."""

from __future__ import annotations

import argparse
import sys

from ...core.hookspecs import Register, hookimpl
from ..client.chat import run_chat
from .options import add_config, load_config
from .request_options import add_request_fields, request_fields


class ChatCommand:
    help = "talk to a served model in the terminal"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--url", metavar="URL", help="the server's stream (default: from server.host and .port)")
        add_request_fields(parser)
        add_config(parser)

    def run(self, args: argparse.Namespace) -> int:
        server = load_config(args).config.server
        url = args.url or f"ws://{server.host}:{server.port}/v1/stream"
        return run_chat(url, request_fields(args), sys.stdin, sys.stdout)


@hookimpl
def register_commands(register: Register) -> None:
    register("chat", ChatCommand)
