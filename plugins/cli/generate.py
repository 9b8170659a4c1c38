"""``mainspring generate``: one prompt, or a file of requests run together, without a server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from ...core.errors import ClientError, ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.messages import FinishReason, Usage
from .. import logs
from ..engine import Delta, Ended, Engine, Result, result
from ..event_loop import run
from .command import FAILED, OK, add_json
from .options import add_config, load_config
from .request_options import add_request_fields, request_fields

#: The ``id`` of an input line (its number if it has none) and what came of it.
Named = tuple[Any, Result]


class GenerateCommand:
    help = "generate from a prompt, or from a file of requests"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="taken as it is; - reads standard input")
        parser.add_argument("--chat", action="store_true", help="send the prompt through the model's chat template")
        parser.add_argument("--input", type=Path, metavar="FILE", help="JSON lines, one request each, run together")
        parser.add_argument("--output", type=Path, metavar="FILE", help="JSON lines, one result each, in input order")
        parser.add_argument("--dtype", metavar="DTYPE", help="short for --set executor.dtype=DTYPE")
        add_request_fields(parser)
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        if (args.prompt is None) == (args.input is None):
            raise ConfigError("generate: give either a PROMPT or --input FILE")
        if args.dtype:
            args.set.append(f"executor.dtype={args.dtype}")
        args.set.append("log.level=warning")
        loaded = load_config(args)
        logs.setup(loaded.config.log)
        engine = Engine(loaded.config, progress=lambda line: print(line, file=sys.stderr))
        if args.input is None:
            prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
            given = {"messages": [{"role": "user", "content": prompt}]} if args.chat else {"prompt": prompt}
            return run(_one(engine, {**given, **request_fields(args)}, args.json))
        try:
            text = args.input.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--input {args.input}: cannot be read: {error}") from error
        # JSON may hold what else ``splitlines`` takes for the end of a line.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        try:
            target = args.output.open("w", encoding="utf-8", errors="backslashreplace") if args.output else None
        except OSError as error:
            raise ConfigError(f"--output {args.output}: cannot be written: {error.strerror or error}") from error
        with target or nullcontext(sys.stdout) as out:
            results = run(_many(engine, lines, request_fields(args)))
            out.writelines(to_json(ended, name) + "\n" for name, ended in results)
        return FAILED if any(ended.error for _, ended in results) else OK


async def _one(engine: Engine, request: dict[str, Any], as_json: bool) -> int:
    text: list[str] = []
    token_ids: list[int] = []
    async with engine:
        try:
            async for event in engine.stream(request):
                if isinstance(event, Delta | Ended):
                    text.append(event.text)
                    token_ids += event.token_ids
                    if not as_json:
                        sys.stdout.write(event.text)
                        sys.stdout.flush()
                if isinstance(event, Ended):
                    ended = result(event.rid, "".join(text), token_ids, event.finish)
        except ClientError as error:
            ended = refused(error)
    if as_json:
        sys.stdout.write(to_json(ended) + "\n")
    elif ended.error:
        print(f"\nmainspring: {ended.error['code']}: {ended.error['message']}", file=sys.stderr)
    else:
        sys.stdout.write("\n")
    return FAILED if ended.error else OK


async def _many(engine: Engine, lines: list[tuple[int, str]], defaults: Mapping[str, Any]) -> list[Named]:
    """Run every line together, as many at a time as may wait.  A line that cannot run has its error in its place; the
    others go on.  ``lines`` have their numbers in the file."""
    room = asyncio.Semaphore(engine.config.scheduler.max_waiting)
    async with engine:
        jobs = (_line(engine, room, index, number, line, defaults) for index, (number, line) in enumerate(lines))
        return await asyncio.gather(*jobs)


async def _line(
    engine: Engine, room: asyncio.Semaphore, index: int, number: int, line: str, defaults: Mapping[str, Any]
) -> Named:
    name: Any = index
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise ClientError("invalid_request", f"line {number} is not a JSON object")
        name = request.pop("id", index)
        async with room:
            return name, await engine.generate({**defaults, **request})
    except (ValueError, RecursionError) as error:  # not JSON, or numbers and nesting beyond what Python reads
        return name, refused(ClientError("invalid_json", f"line {number}: {error}"))
    except ClientError as error:
        return name, refused(error)


def refused(error: ClientError) -> Result:
    """The result of a request that did not fit the schema."""
    facts = {"code": error.code, "message": error.message, "param": error.param}
    return Result("", "", (), FinishReason.ERROR, Usage(0, 0, 0), {}, error=facts)


def to_json(ended: Result, name: Any = None) -> str:
    """``text, token_ids, finish_reason, usage, timing`` on one line, with the line's ``id`` first if it has one."""
    fields = msgspec.to_builtins(ended)
    return json.dumps({**({} if name is None else {"id": name}), **fields}, ensure_ascii=False)


@hookimpl
def register_commands(register: Register) -> None:
    register("generate", GenerateCommand)
