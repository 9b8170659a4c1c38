"""Paged blocks with automatic prefix sharing, found by a chained hash and compared token by token.  The default."""

from __future__ import annotations

from ..core.hookspecs import Register, hookimpl
from ..core.policy import AllocatorContext
from .sharing.allocator import SharingAllocator
from .sharing.chain import ChainLookup, HashBlock, hash_block
from .sharing.swap import SharingOptions


class PrefixAllocator(SharingAllocator):
    """``hasher`` may be anything, even a constant: it decides how fast a block is found, never which."""

    def __init__(
        self, options: SharingOptions | None, context: AllocatorContext, hasher: HashBlock = hash_block
    ) -> None:
        super().__init__(ChainLookup(context.block_size, hasher), context, options)


@hookimpl
def register_allocators(register: Register) -> None:
    register("prefix", PrefixAllocator, SharingOptions)
