"""What the sharing allocators (``prefix``, ``radix``) are made of: pool, catalogue, look-up structures, draft."""
