"""Ids -> text, token by token, in O(1) per token, never half a character.

Theory: the decoders of today's tokenizers act on each token alone; only the first token of a text may be treated
differently (a leading space is dropped).  So every id stands for fixed bytes, learnt once per vocabulary by asking the
tokenizer's own decoder, and a stream is those bytes through an incremental UTF-8 decoder.  Decoders that look at the
*last* token of a text cannot stream and are refused when the model is loaded.

Bytes that are no UTF-8 become U+FFFD as soon as that is certain; an output cut inside a character ends in one, and a
U+FFFD that the model wrote itself is delivered like any other character.  With byte-fallback vocabularies each bad byte
becomes one U+FFFD and characters completed before it stay (the batch decoder would discard the whole run of bytes,
which a stream cannot take back).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable

from tokenizers import Tokenizer

from ...core.errors import ConfigError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_STREAMABLE = frozenset({"ByteLevel", "ByteFallback", "Replace", "Fuse", "Strip", "Metaspace", "WordPiece"})
_BAD_BYTES = "mainspring_each_bad_byte"
codecs.register_error(_BAD_BYTES, lambda error: ("\ufffd" * (error.end - error.start), error.end))  # type: ignore[attr-defined]


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies -> the byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_ALPHABET = byte_alphabet()


class Pieces:
    """What each id of one tokenizer stands for, as bytes; shared by all streams, filled as ids are met."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises ConfigError for a decoder that cannot stream."""
        self._tokenizer = tokenizer
        kinds = _decoder_kinds(json.loads(tokenizer.to_str())["decoder"])
        for kind in kinds:
            if kind not in _STREAMABLE:
                valid = ", ".join(sorted(_STREAMABLE))
                raise ConfigError(f"tokenizer decoder {kind!r} cannot stream text; supported: {valid}")
        if "ByteLevel" in kinds and len(kinds) > 1:
            raise ConfigError(
                f"tokenizer decoder ByteLevel combined with others cannot stream text: {', '.join(kinds)}"
            )
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self.errors = _BAD_BYTES if self._byte_fallback else "replace"
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._later: dict[int, bytes | None] = {}

    def first(self, token_id: int) -> bytes | None:
        """Bytes of ``token_id`` as the first shown token of a text; None for an id the tokenizer has no token for."""
        token = self._tokenizer.id_to_token(token_id)
        return None if token is None else self._bytes(token, lead="")

    def later(self, token_id: int) -> bytes | None:
        """Bytes of ``token_id`` after another token."""
        try:
            return self._later[token_id]
        except KeyError:
            token = self._tokenizer.id_to_token(token_id)
            piece = self._later[token_id] = None if token is None else self._bytes(token, lead="a")
            return piece

    def _bytes(self, token: str, lead: str) -> bytes:
        if self._byte_level:
            if all(char in _ALPHABET for char in token):
                return bytes(_ALPHABET[char] for char in token)
            return token.encode()  # an added token written as plain text
        byte = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        if byte and (value := int(byte[1], 16)) >= 0x80:
            return bytes([value])  # part of a character: only the stream knows which
        decoder = self._tokenizer.decoder
        tokens = [lead, token] if lead else [token]
        text = decoder.decode(tokens) if decoder else " ".join(tokens)
        return text[len(lead) :].encode()


def _decoder_kinds(decoder: dict[str, object] | None) -> list[str]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [kind for part in decoder["decoders"] for kind in _decoder_kinds(part)]  # type: ignore[attr-defined]
    if decoder["type"] == "Strip" and decoder["stop"]:
        return ["Strip with stop > 0"]
    return [str(decoder["type"])]


class Detokenizer:
    """One stream of text.  The concatenation of all answers is the text of all ids, whatever the cuts."""

    __slots__ = ("_decode", "_hidden", "_pieces", "_started")

    def __init__(self, pieces: Pieces, skip_special_tokens: bool = True) -> None:
        self._pieces, self._started = pieces, False
        self._hidden: frozenset[int] = pieces.special_ids if skip_special_tokens else frozenset()
        self._decode = codecs.getincrementaldecoder("utf-8")(pieces.errors).decode

    def push(self, token_ids: Iterable[int]) -> str:
        """The characters that ``token_ids`` complete."""
        out = []
        for token_id in token_ids:
            if token_id not in self._hidden:
                piece = self._pieces.later(token_id) if self._started else self._pieces.first(token_id)
                if piece is not None:
                    self._started = True
                    out.append(piece)
        return self._decode(b"".join(out))

    def flush(self) -> str:
        """The end of the stream: U+FFFD for a character that was cut, else nothing."""
        return self._decode(b"", True)
