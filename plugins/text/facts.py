"""What is known of a tokenizer beside its vocabulary."""

from __future__ import annotations

import msgspec


class TokenizerFacts(msgspec.Struct, frozen=True):
    """``special_tokens`` by role (``bos_token``, ...) are what chat templates see; ``end_ids`` end a generation."""

    name: str
    chat_template: str | None = None
    special_tokens: dict[str, str] = {}
    end_ids: tuple[int, ...] = ()
