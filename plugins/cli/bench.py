"""``mainspring bench``: drive a server with an open-loop load and print latencies, goodput and failures."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ..bench.arrivals import Load, draw, read_trace
from ..bench.native import NativeTarget
from ..bench.openai_http import OpenAITarget
from ..bench.report import PERCENTILES, parse_slo
from ..bench.run import Target, play
from .command import FAILED, OK, add_json, print_json, print_table

KEY_VARIABLE = "MAINSPRING_API_KEY"


class BenchCommand:
    help = "drive a server with an open-loop load and print latencies, goodput and failures"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--url",
            required=True,
            help="ws://HOST:PORT (native protocol), or http://HOST:PORT/v1 of any OpenAI-compatible server",
        )
        parser.add_argument("--requests", type=int, default=100, metavar="N")
        parser.add_argument(
            "--rate", type=float, default=math.inf, metavar="R", help="requests per second (default: all at once)"
        )
        parser.add_argument("--ramp-to", type=float, metavar="R", help="rate at the end; it changes linearly")
        parser.add_argument(
            "--burstiness", type=float, default=1.0, metavar="K", help="shape of gamma gaps; 1: Poisson"
        )
        parser.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths from JSON lines instead")
        parser.add_argument("--speed", type=float, default=1.0, metavar="X", help="play the trace X times as fast")
        parser.add_argument("--connections", type=int, default=8, metavar="N", help="WebSocket connections (default 8)")
        parser.add_argument("--prompt-words", type=int, default=32, metavar="N")
        parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
        parser.add_argument("--ignore-eos", action="store_true", help="always generate --max-tokens")
        parser.add_argument("--slow", type=float, default=0.0, metavar="SHARE", help="of requests whose reader is slow")
        parser.add_argument("--cancel", type=float, default=0.0, metavar="SHARE", help="of requests that are cancelled")
        parser.add_argument("--slo", nargs="+", default=[], metavar="NAME:MS", help="ttft, tpot, e2e: for goodput")
        parser.add_argument("--model", default="", help="name sent to an OpenAI-compatible server")
        parser.add_argument("--timeout-s", type=float, default=600.0, metavar="S", help="of one request")
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--save", type=Path, metavar="FILE", help="write the report as JSON")
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        for name in ("requests", "rate", "burstiness", "connections", "max_tokens", "speed", "timeout_s"):
            if not getattr(args, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be above 0")
        load = Load(
            args.requests,
            args.rate,
            args.ramp_to,
            args.burstiness,
            args.prompt_words,
            args.max_tokens,
            args.slow,
            args.cancel,
            args.seed,
        )
        jobs = read_trace(args.trace, load, args.speed) if args.trace else draw(load)
        report = asyncio.run(play(make_target(args), jobs, parse_slo(args.slo), args.timeout_s))
        if args.save:
            args.save.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if args.json:
            print_json(report)
        else:
            show(report)
        return FAILED if report["failures"] else OK


def make_target(args: argparse.Namespace) -> Target:
    """The target that ``--url`` names.  The key comes from the environment: arguments can be seen by others."""
    key = os.environ.get(KEY_VARIABLE)
    fields = {"ignore_eos": True} if args.ignore_eos else {}
    scheme = args.url.partition("://")[0]
    if scheme in ("ws", "wss"):
        return NativeTarget(args.url, args.connections, key, fields)
    if scheme in ("http", "https"):
        return OpenAITarget(args.url, args.model, key, fields)
    raise ConfigError(f"--url {args.url!r}: expected ws, wss, http or https")


def show(report: dict[str, Any]) -> None:
    """The report for people."""
    latencies = [
        name for name, value in report.items() if name.endswith("_ms") and isinstance(value, dict) and "mean" in value
    ]
    plain = [(name, value) for name, value in report.items() if name not in latencies and value is not None]
    print_table(("FIGURE", "VALUE"), plain)
    sys.stdout.write("\n")
    columns = ("mean", *(f"p{percent}" for percent in PERCENTILES), "max")
    rows = [(name, *(report[name][column] for column in columns)) for name in latencies]
    print_table(("LATENCY", *(column.upper() for column in columns)), rows)


@hookimpl
def register_commands(register: Register) -> None:
    register("bench", BenchCommand)
