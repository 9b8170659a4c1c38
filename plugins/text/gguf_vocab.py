"""A tokenizer from the vocabulary inside a GGUF file, built directly from the file's own tokens, merges and scores.

Two families are known: byte-level BPE (``gpt2``), cut as ``pre_tokenizers`` knows, and SentencePiece-style BPE
(``llama``), whose merges follow from the scores.  Anything else is refused, because a nearly right tokenizer is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from ...core.errors import ConfigError, nearest
from ..models.gguf_values import read_metadata
from .facts import TokenizerFacts
from .pre_tokenizers import CUTTINGS

_KEY = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # token types of GGUF
#: Role of a token -> its key.
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
_ENDS = ("eos", "eot", "eom")
#: What a SentencePiece vocabulary may ask for that is not done here.
_NOT_DONE = ("remove_extra_whitespaces", "precompiled_charsmap")
_ELSE = "use a Hugging Face folder with tokenizer.json as model.path"


def load_gguf(path: Path) -> tuple[Tokenizer, TokenizerFacts]:
    """Raises ConfigError naming the file and what is missing, does not fit or is not supported."""
    keys = read_metadata(path)
    tokens, types = _vocabulary(path, keys)
    kind = keys.get(_KEY + "model")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level_bpe(path, tokens, keys)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece_bpe(path, tokens, types, keys), True
    else:
        raise ConfigError(f"{path}: {_KEY}model = {kind!r} is not supported (valid: gpt2, llama); {_ELSE}")
    tokenizer.add_special_tokens(_added(tokens, types, (_CONTROL, _UNKNOWN), special=True))
    tokenizer.add_tokens(_added(tokens, types, (_USER_DEFINED,), special=False))
    special = {
        f"{role}_token": tokens[index]
        for role, key in _ROLES.items()
        if (index := _token_id(path, keys, key, len(tokens))) is not None
    }
    _frame(path, tokenizer, special, keys, adds_bos)
    ends = (_token_id(path, keys, key, len(tokens)) for key in _ENDS)
    return tokenizer, TokenizerFacts(
        name=str(keys.get("general.name") or path.stem),
        chat_template=keys.get("tokenizer.chat_template"),
        special_tokens=special,
        end_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )


def _vocabulary(path: Path, keys: dict[str, Any]) -> tuple[list[str], list[int]]:
    """Every token and its type."""
    tokens = keys.get(_KEY + "tokens")
    if not tokens:
        raise ConfigError(f"{path}: has no tokenizer ({_KEY}tokens)")
    types = keys.get(_KEY + "token_type") or [_NORMAL] * len(tokens)
    if len(set(tokens)) != len(tokens) or len(types) != len(tokens):
        raise ConfigError(f"{path}: {_KEY}tokens: duplicates, or not one token_type per token")
    for kind in set(types) - set(range(_NORMAL, _BYTE + 1)):
        raise ConfigError(f"{path}: {_KEY}token_type: {tokens[types.index(kind)]!r} has the unknown type {kind}")
    return tokens, types


def _token_id(path: Path, keys: dict[str, Any], name: str, num_tokens: int) -> int | None:
    """The id that the file states for a role, if it states one."""
    key = f"{_KEY}{name}_token_id"
    index = keys.get(key)
    if index is None or index in (-1, 2**32 - 1):  # how some files write "none"
        return None
    if not (isinstance(index, int) and 0 <= index < num_tokens):
        raise ConfigError(f"{path}: {key} = {index!r}: the vocabulary has ids 0 to {num_tokens - 1}")
    return index


def _frame(path: Path, tokenizer: Tokenizer, special: dict[str, str], keys: dict[str, Any], adds_bos: bool) -> None:
    """What is put before and behind a text.  ``adds_bos``: where the file does not say."""
    template = "$A:0"
    pairs = []
    for role, adds, form in (("bos", adds_bos, "{0}:0 {1}"), ("eos", False, "{1} {0}:0")):
        token, asked = special.get(role + "_token"), keys.get(f"{_KEY}add_{role}_token")
        if asked and token is None:
            raise ConfigError(f"{path}: {_KEY}add_{role}_token = true, and {_KEY}{role}_token_id is missing")
        if token is not None and (adds if asked is None else asked):
            template = form.format(token, template)
            pairs.append((token, tokenizer.token_to_id(token)))
    if pairs:
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=pairs)


def _added(tokens: list[str], types: list[int], kinds: tuple[int, ...], special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, special=special, normalized=False)
        for token, token_type in zip(tokens, types, strict=True)
        if token_type in kinds
    ]


def _byte_level_bpe(path: Path, tokens: list[str], keys: dict[str, Any]) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether it begins texts with the begin token if the file does not say."""
    name = keys.get(_KEY + "pre")
    if name not in CUTTINGS:
        what = f"= {name!r} is not supported" if name is not None else "is missing, so how text is cut is not known"
        raise ConfigError(f"{path}: {_KEY}pre {what}{nearest(str(name), CUTTINGS)}; {_ELSE}")
    cutting = CUTTINGS[name]()
    pairs = (merge.partition(" ") for merge in keys.get(_KEY + "merges", ()))
    merges = [(left, right) for left, _, right in pairs]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(_bpe(path, vocab, merges, ignore_merges=cutting.whole))
    if cutting.normalizer is not None:
        tokenizer.normalizer = cutting.normalizer
    tokenizer.pre_tokenizer = cutting.pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, cutting.adds_bos


def _sentencepiece_bpe(path: Path, tokens: list[str], types: list[int], keys: dict[str, Any]) -> Tokenizer:
    scores = keys.get(_KEY + "scores")
    if scores is None or len(scores) != len(tokens):
        raise ConfigError(f"{path}: {_KEY}scores: expected one score per token")
    for name in _NOT_DONE:
        if value := keys.get(_KEY + name):
            said = value if isinstance(value, bool) else "..."
            raise ConfigError(f"{path}: {_KEY}{name} = {said} is not supported; {_ELSE}")
    vocab = {token: index for index, token in enumerate(tokens)}
    if 0 < (found := sum(f"<0x{byte:02X}>" in vocab for byte in range(256))) < 256:
        raise ConfigError(f"{path}: {_KEY}tokens: {found} of 256 byte tokens (<0x00> to <0xFF>)")
    unknown = next((token for token, index in vocab.items() if types[index] == _UNKNOWN), None)
    merges = _merges(vocab, types, scores)
    tokenizer = Tokenizer(_bpe(path, vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = bool(keys.get(_KEY + "add_space_prefix", True))
    space = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space]) if prefix else space
    chain: list[Any] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*chain, decoders.Strip(" ", 1, 0)] if prefix else chain)
    return tokenizer


def _merges(vocab: dict[str, int], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, the best score first.  Only normal tokens come from merges."""
    ranked: list[tuple[float, int, str, str]] = []
    for token, index in vocab.items():
        if types[index] != _NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                ranked.append((-scores[index], vocab[left], left, right))
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _bpe(path: Path, vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception for merges that are not in the vocabulary
        raise ConfigError(f"{path}: {_KEY}merges do not fit the vocabulary: {error}") from error
