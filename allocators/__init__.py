"""KV block allocators, one per file; the file's name is the name in ``allocator.use``."""
