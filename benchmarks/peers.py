"""The whole engine next to another engine on the same file and machine, in alternation: only the ratios mean anything.

    python benchmarks/peers.py [--concurrency 1 4 16 64] [--prompt-tokens 128] [--new-tokens 128] [--visits 3]
        [--formats auto fast] [--environments FOLDER]

The peer is OpenVINO GenAI, which reads the embedded GGUF file itself (continuous batching, its own default precision
for this CPU); it is installed into an environment of its own at the first run.  All requests of a level are sent at
once, greedy, end-of-sequence ignored, the same random ids for everybody.  Ours go through host, policy, allocator,
sampler and text, in this process.  Output tokens per second including prefill: the best of the visits, and the ratio of
the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from throughput import ask, prompts

from mainspring import Engine
from mainspring.plugins.config_file import load
from mainspring.plugins.folders import cache_folder
from mainspring.plugins.models.embedded import default_model_path

REQUIREMENT = "openvino-genai==2026.4.1.0"
FORMATS = {"auto": "executor.dtype=auto", "fast": "executor.dtype=fast", "fp32": "executor.dtype=fp32"}


def environment(folder: Path) -> Path:
    """The peer's interpreter; made and filled at the first run."""
    python = folder / "openvino" / "bin" / "python"
    if not python.exists():
        print(f"installing {REQUIREMENT} into {python.parents[1]}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)  # noqa: S603
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", REQUIREMENT], check=True)  # noqa: S603
    return python


class Peer:
    """The other engine in its process."""

    def __init__(self, python: Path, threads: int) -> None:
        command = [
            str(python),
            str(Path(__file__).parent / "peer_workers" / "openvino_worker.py"),
            str(default_model_path()),
        ]
        begun = time.perf_counter()
        self.process: Any = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        self.version = json.loads(self.process.stdout.readline())["ready"]
        self.load_s = time.perf_counter() - begun

    def tokens_per_s(self, ids: list[list[int]], new_tokens: int) -> float:
        print(json.dumps({"ids": ids, "new_tokens": new_tokens}), file=self.process.stdin, flush=True)
        return len(ids) * new_tokens / float(json.loads(self.process.stdout.readline())["seconds"])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


async def ours(engine: Engine, ids: list[list[int]], new_tokens: int) -> float:
    """Output tokens per second of one level."""
    begun = time.perf_counter()
    rows = await asyncio.gather(*(ask(engine, row, new_tokens) for row in ids))
    assert all(count == new_tokens for _, _, count in rows)
    return len(ids) * new_tokens / (time.perf_counter() - begun)


async def compare(args: argparse.Namespace) -> None:
    """All levels, all engines in turn at each visit."""
    peer = Peer(environment(args.environments), args.threads)
    print(f"OpenVINO {peer.version}, loaded in {peer.load_s:.1f} s; {args.threads} threads")
    async with AsyncExitStack() as stack:
        engines = {}
        for name in args.formats:
            common = [
                f"executor.threads={args.threads}",
                "executor.memory=2GiB",
                "journal.path=",
                "executor.use=native",
            ]
            begun = time.perf_counter()
            engine = Engine(load(None, [*common, FORMATS[name]]).config)
            engines[name] = await stack.enter_async_context(engine)
            print(f"mainspring {name}, loaded in {time.perf_counter() - begun:.1f} s")
        print(
            "\n| concurrency | "
            + " | ".join([*engines, "openvino"])
            + " | "
            + " | ".join(f"{n} x" for n in engines)
            + " |"
        )
        print("|---|" + "---|" * (2 * len(engines) + 1))
        for level in args.concurrency:
            ids = prompts(level, args.prompt_tokens)
            seen: dict[str, list[float]] = {name: [] for name in [*engines, "openvino"]}
            for visit in range(args.visits + 1):
                for name, engine in engines.items():
                    # Other ids at each visit: nothing that an earlier visit left may be shared.
                    fresh = [[(token + visit + 1) % 40000 + 100 for token in row] for row in ids]
                    seen[name].append(await ours(engine, fresh, args.new_tokens))
                seen["openvino"].append(await asyncio.to_thread(peer.tokens_per_s, ids, args.new_tokens))
            for rates in seen.values():
                del rates[0]  # warmed up
            median = {name: statistics.median(rates) for name, rates in seen.items()}
            cells = [f"{max(rates):.1f}" for rates in seen.values()]
            ratios = [f"{median[name] / median['openvino']:.2f}" for name in engines]
            print(f"| {level} | " + " | ".join(cells + ratios) + " |", flush=True)
    peer.close()


def main() -> None:
    """Parse and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=["auto", "fast"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--environments", type=Path, default=cache_folder() / "peers")
    try:
        asyncio.run(compare(parser.parse_args()))
    except subprocess.CalledProcessError as error:
        print(f"the peer cannot be installed here: {error}")


if __name__ == "__main__":
    main()
