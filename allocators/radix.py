"""Paged blocks with automatic prefix sharing, found in a radix tree of whole blocks that splits where prompts part."""

from __future__ import annotations

from ..core.hookspecs import Register, hookimpl
from ..core.policy import AllocatorContext
from .sharing.allocator import SharingAllocator
from .sharing.swap import SharingOptions
from .sharing.tree import TreeLookup


class RadixAllocator(SharingAllocator):
    """A request locks the path of its blocks from the root; only unlocked ends of the tree are evicted."""

    def __init__(self, options: SharingOptions | None, context: AllocatorContext) -> None:
        super().__init__(TreeLookup(context.block_size), context, options)


@hookimpl
def register_allocators(register: Register) -> None:
    register("radix", RadixAllocator, SharingOptions)
