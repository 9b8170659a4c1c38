"""A tokenizer from the vocabulary inside a GGUF file, built directly from the file's own tokens, merges and scores.

Two families are known: byte-level BPE (``gpt2``) with the pre-tokenizers listed below, and SentencePiece-style BPE
(``llama``) whose merges follow from the scores.  Anything else is refused, because a nearly right tokenizer is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ...core.errors import ConfigError
from ..models.gguf_values import read_metadata
from .facts import TokenizerFacts

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # GGUF token types that matter here


_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)
#: Value of ``tokenizer.ggml.pre`` -> how text is cut before the merges.
PRE_TOKENIZERS: dict[str, pre_tokenizers.PreTokenizer] = {
    "gpt-2": _BYTE_LEVEL,
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTE_LEVEL]),
}


def load_gguf(path: Path) -> tuple[Tokenizer, TokenizerFacts]:
    """Raises ConfigError naming the file and what is missing or not supported."""
    keys = read_metadata(path)
    tokens = keys.get("tokenizer.ggml.tokens")
    if not tokens:
        raise ConfigError(f"{path}: has no tokenizer (tokenizer.ggml.tokens)")
    kind = keys.get("tokenizer.ggml.model")
    types = keys.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(set(tokens)) != len(tokens) or len(types) != len(tokens):
        raise ConfigError(f"{path}: tokenizer.ggml.tokens: duplicates, or not one token_type per token")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(path, tokens, keys)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(path, tokens, types, keys)
    else:
        raise ConfigError(
            f"{path}: tokenizer.ggml.model = {kind!r} is not supported (valid: gpt2, llama); "
            "use a Hugging Face folder with tokenizer.json as model.path"
        )
    tokenizer.add_special_tokens(_added(tokens, types, (_CONTROL, _UNKNOWN), special=True))
    tokenizer.add_tokens(_added(tokens, types, (_USER_DEFINED,), special=False))
    special = {
        f"{name}_token": tokens[index]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if 0 <= (index := keys.get(f"tokenizer.ggml.{key}_token_id", -1)) < len(tokens)
    }
    bos = special.get("bos_token")
    if bos and keys.get("tokenizer.ggml.add_bos_token", kind == "llama"):
        pair = (bos, tokenizer.token_to_id(bos))
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos}:0 $A:0", special_tokens=[pair])
    ends = [keys[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in keys]
    facts = TokenizerFacts(
        name=str(keys.get("general.name") or path.stem),
        chat_template=keys.get("tokenizer.chat_template"),
        special_tokens=special,
        end_ids=tuple(dict.fromkeys(ends)),
    )
    return tokenizer, facts


def _added(tokens: list[str], types: list[int], kinds: tuple[int, ...], special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, special=special, normalized=False)
        for token, token_type in zip(tokens, types, strict=True)
        if token_type in kinds
    ]


def _byte_level_bpe(path: Path, tokens: list[str], keys: dict[str, Any]) -> Tokenizer:
    pre = keys.get("tokenizer.ggml.pre", "gpt-2")
    if pre not in PRE_TOKENIZERS:
        raise ConfigError(
            f"{path}: tokenizer.ggml.pre = {pre!r} is not supported (valid: {', '.join(sorted(PRE_TOKENIZERS))}); "
            "use a Hugging Face folder with tokenizer.json as model.path"
        )
    pairs = (merge.partition(" ") for merge in keys.get("tokenizer.ggml.merges", ()))
    merges = [(left, right) for left, _, right in pairs]
    tokenizer = Tokenizer(_bpe(path, {token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[pre]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(path: Path, tokens: list[str], types: list[int], keys: dict[str, Any]) -> Tokenizer:
    scores = keys.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ConfigError(f"{path}: tokenizer.ggml.scores: expected one score per token")
    vocab = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, str, str]] = []
    for token, index in vocab.items():
        if types[index] in (_CONTROL, _UNKNOWN):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[index], vocab[left], left, right))
    merges = [(left, right) for _, _, left, right in sorted(ranked)]
    unknown = next((token for token, index in vocab.items() if types[index] == _UNKNOWN), None)
    tokenizer = Tokenizer(_bpe(path, vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(keys.get("tokenizer.ggml.add_space_prefix", True))
    space = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space]) if prefix else space
    chain: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*chain, decoders.Strip(" ", 1, 0)] if prefix else chain)
    return tokenizer


def _bpe(path: Path, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception for merges that are not in the vocabulary
        raise ConfigError(f"{path}: tokenizer.ggml.merges do not fit the vocabulary: {error}") from error
