"""Small tokenizers of each kind, built here: byte-level, Metaspace with byte fallback, bare Metaspace, WordPiece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mainspring.plugins.text.detokenize import byte_alphabet
from mainspring.plugins.text.facts import TokenizerFacts

BYTE_CHARS = {byte: char for char, byte in byte_alphabet().items()}
SPECIAL = [AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")]


def byte_level(extra: tuple[str, ...] = ("\u0120a", "he", "ll")) -> Tokenizer:
    """Every byte, a few merges, two special tokens (the last ids)."""
    vocab = {char: index for index, char in enumerate(BYTE_CHARS[byte] for byte in range(256))}
    vocab |= {token: 256 + index for index, token in enumerate(extra)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(token[0], token[1:]) for token in extra]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _fallback_vocab(*words: str) -> dict[str, int]:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    return {token: index for index, token in enumerate(tokens)}


def byte_fallback(strip: bool = True) -> Tokenizer:
    """SentencePiece style: a leading space is added and, with ``strip``, taken away again by the decoder."""
    words = ("\u2581", "a", "b", ".", "\u2581a", "\u2581b", "\u2581\u2581", "ab", "\u00e9", "\ufffd")
    merges = [("\u2581", "a"), ("\u2581", "b"), ("\u2581", "\u2581"), ("a", "b")]
    model = models.BPE(
        vocab=_fallback_vocab(*words), merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    space = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space]) if strip else space
    chain: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*chain, decoders.Strip(" ", 1, 0)] if strip else chain)
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def metaspace() -> Tokenizer:
    words = ("\u2581", "a", "b", ".", "\u2581a", "\u2581b", "\u00e9", "\u6f22")
    model = models.Unigram([("<unk>", 0.0), *((word, -1.0 - len(word)) for word in words)], 0, False)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def wordpiece() -> Tokenizer:
    words = ("[UNK]", "a", "##a", "b", "##b", ".", ",", "'", "s", "n", "'", "t", "##\u00e9", "\u6f22", "do", "not")
    vocab = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def plain() -> Tokenizer:
    """No decoder at all: tokens are joined by spaces."""
    tokenizer = Tokenizer(models.WordLevel(vocab={"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "byte_fallback_unstripped": lambda: byte_fallback(strip=False),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
    "plain": plain,
}
FACTS = TokenizerFacts("small", special_tokens={"bos_token": "<s>", "eos_token": "</s>"}, end_ids=())
