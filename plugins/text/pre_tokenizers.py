"""How text is cut before the merges of a byte-level vocabulary, by the name that a GGUF file gives it.

Each entry is the cutting of the tokenizer whose name it bears, as its authors publish it in ``tokenizer.json``.  It was
compared with ids that their tokenizer made, except: ``gpt-4o``, ``llama4``, ``tekken`` and ``smaug-bpe`` only with
transformers' reading of the same file, ``deepseek-v3`` and ``smollm`` with no other tokenizer.  A name that is not here
is refused: merges that are applied to other pieces than they were learnt on give other ids, and nothing says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_ENGLISH = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_QWEN2 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
_TEKKEN = _WORDS % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_GPT4O = _WORDS % (_ENGLISH + "?", _ENGLISH + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED = (  # letters of scripts with two cases
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
)


@dataclass(frozen=True, slots=True)
class Cutting:
    """``whole``: a piece that is a token as it stands is not merged anew.  ``adds_bos``: what a file that does not say
    means by that."""

    pre_tokenizer: PreTokenizer
    normalizer: Normalizer | None = None
    whole: bool = False
    adds_bos: bool = False


_WITH_REGEX = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_DIGITS = pre_tokenizers.Digits(individual_digits=True)


def _split(*patterns: str, digits: bool = False) -> PreTokenizer:
    """Cut by one regular expression after the other, then spell as bytes."""
    cuts: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, *([_DIGITS] if digits else []), _BYTES])


def _gpt2() -> Cutting:
    return Cutting(_WITH_REGEX)


def _neox() -> Cutting:
    return Cutting(_WITH_REGEX, normalizers.NFC())


def _digits() -> Cutting:
    return Cutting(pre_tokenizers.Sequence([_DIGITS, _WITH_REGEX]))


def _command_r() -> Cutting:
    return Cutting(pre_tokenizers.Sequence([_DIGITS, _WITH_REGEX]), normalizers.NFC())


def _llama3() -> Cutting:
    return Cutting(_split(_LLAMA3), whole=True, adds_bos=True)


def _smaug() -> Cutting:
    return Cutting(_split(_LLAMA3))


def _qwen2() -> Cutting:
    return Cutting(_split(_QWEN2), normalizers.NFC())


def _tekken() -> Cutting:
    return Cutting(_split(_TEKKEN), whole=True, adds_bos=True)


def _gpt4o() -> Cutting:
    return Cutting(_split(_GPT4O))


def _deepseek_llm() -> Cutting:
    return Cutting(_split(r"[\r\n]", rf"\s?[{_CASED}]+", _SIGNS, r"\s+$", _HAN, digits=True))


def _deepseek_coder() -> Cutting:
    return Cutting(_split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, digits=True))


def _deepseek_v3() -> Cutting:
    return Cutting(_split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3))


def _falcon() -> Cutting:
    runs = pre_tokenizers.Digits(individual_digits=False)
    threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return Cutting(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), _WITH_REGEX, runs, threes]))


#: Value of ``tokenizer.ggml.pre`` -> what it means.  Made on demand: compiling an expression takes milliseconds.
CUTTINGS: dict[str, Callable[[], Cutting]] = {
    "command-r": _command_r,
    "deepseek-coder": _deepseek_coder,
    "deepseek-llm": _deepseek_llm,
    "deepseek-r1-qwen": _qwen2,
    "deepseek-v3": _deepseek_v3,
    "falcon": _falcon,
    "gpt-2": _gpt2,
    "gpt-4o": _gpt4o,
    "llama-bpe": _llama3,
    "llama-v3": _llama3,
    "llama3": _llama3,
    "llama4": _gpt4o,
    "mpt": _neox,
    "olmo": _neox,
    "qwen2": _qwen2,
    "refact": _digits,
    "smaug-bpe": _smaug,
    "smollm": _digits,
    "starcoder": _digits,
    "tekken": _tekken,
}
