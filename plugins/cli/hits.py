"""``mainspring hits``: how much of a trace's prompts a prefix cache of a given size would have held."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...core.config import AllocatorConfig
from ...core.errors import ConfigError
from ...core.hookspecs import Register, hookimpl
from ...core.policy import Allocator, AllocatorContext
from ...core.registry import Registry
from ..traces.mooncake import read_trace
from ..traces.replay import BLOCK_SIZE, HitRates, replay, unlimited
from .command import OK, add_json, print_json, print_table
from .options import add_config, load_config

UNLIMITED = "unlimited"


class HitsCommand:
    help = "replay a trace of shared prompt blocks through the configured allocator and print the cache hit rates"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("trace", type=Path, help="JSON lines with hash_ids, one per 512-token block; may be .gz")
        parser.add_argument(
            "--blocks", default=UNLIMITED, metavar="N,N,...", help=f"cache sizes in blocks of the trace, or {UNLIMITED}"
        )
        parser.add_argument("--evict", metavar="KEY,...", help="eviction orders instead of allocator.evict")
        parser.add_argument("--allocator", metavar="NAME", help="instead of allocator.use")
        add_config(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        config = load_config(args).config.allocator
        sizes = parse_sizes(args.blocks)
        prompts = [request.hash_ids for request in read_trace(args.trace)]
        registry, use = Registry(), args.allocator or config.use
        rows = []
        for evict in args.evict.split(",") if args.evict else [config.evict]:
            for size in sizes:
                capacity = unlimited(prompts) if size is None else size

                def make(num_blocks: int, evict: str = evict) -> Allocator:
                    return make_allocator(registry, config, use, evict, num_blocks)

                rows.append(describe(use, evict, size, replay(prompts, capacity, make)))
        if args.json:
            print_json({"trace": str(args.trace), "rates": rows})
        else:
            print_table(
                ("ALLOCATOR", "EVICT", "BLOCKS", "HIT %", "WITHOUT FIRST BLOCK %", "EVICTIONS"),
                [
                    (
                        row["allocator"],
                        row["evict"],
                        row["blocks"] or UNLIMITED,
                        f"{row['hit_percent']:.2f}",
                        f"{row['hit_percent_without_first_block']:.2f}",
                        row["evictions"],
                    )
                    for row in rows
                ],
            )
        return OK


def parse_sizes(text: str) -> list[int | None]:
    """``"1000,unlimited"`` -> ``[1000, None]``.  Raises ConfigError."""
    sizes: list[int | None] = []
    for word in text.split(","):
        size = None if word.strip() == UNLIMITED else int(word) if word.strip().isdecimal() else 0
        if size == 0:
            raise ConfigError(f"--blocks {word!r}: expected a number of blocks from 1, or {UNLIMITED}")
        sizes.append(size)
    return sizes


def make_allocator(registry: Registry, config: AllocatorConfig, use: str, evict: str, num_blocks: int) -> Allocator:
    """The allocator ``use``, with the options of the configuration if it is the configured one."""
    context = AllocatorContext(num_blocks, BLOCK_SIZE, evict)
    options = config.options if use == config.use else {}
    made: Allocator = registry.make("allocator", use, options, context)
    return made


def describe(use: str, evict: str, size: int | None, rates: HitRates) -> dict[str, object]:
    """One result as plain data; ``blocks`` None means unlimited."""
    return {
        "allocator": use,
        "evict": evict,
        "blocks": size,
        "requests": rates.num_requests,
        "prompt_blocks": rates.num_blocks,
        "hit_blocks": rates.num_hits,
        "hit_percent": 100 * rates.share,
        "hit_percent_without_first_block": 100 * rates.share_beyond_first,
        "evictions": rates.num_evictions,
    }


@hookimpl
def register_commands(register: Register) -> None:
    register("hits", HitsCommand)
