"""Builders for tests of the allocators that share prefixes."""

from __future__ import annotations

from typing import Any

from tests.allocators.driver import Driver, make_context

from mainspring.allocators.prefix import PrefixAllocator
from mainspring.allocators.radix import RadixAllocator
from mainspring.core.messages import StepGrant

KINDS: dict[str, Any] = {"prefix": PrefixAllocator, "radix": RadixAllocator}


def engine(kind: str, num_blocks: int = 16, block_size: int = 4, depth: int = 1, **context: Any) -> Driver:
    return Driver(KINDS[kind](None, make_context(num_blocks, block_size, **context)), depth)


def ids(count: int, first: int = 100) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def tables(grant: StepGrant) -> dict[str, tuple[int, ...]]:
    return {row.rid: row.block_table for row in grant.rows}
