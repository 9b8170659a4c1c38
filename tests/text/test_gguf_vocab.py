"""Vocabularies in GGUF files: read as they stand, or refused by name (H-07, H-08)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.text.gguf_files import write_gguf, write_keys
from tests.text.vocabularies import byte_fallback, byte_level

from mainspring.core.errors import ConfigError
from mainspring.plugins.models.gguf_values import read_metadata
from mainspring.plugins.settings import ModelConfig
from mainspring.plugins.text.detokenize import byte_alphabet
from mainspring.plugins.text.pre_tokenizers import CUTTINGS
from mainspring.plugins.text.tokenizer import TextModel, load_text_model


def load(path: Path) -> TextModel:
    return load_text_model(ModelConfig(path=str(path)))


@pytest.mark.parametrize("text", ["a b", "ab  a b", " ab.", "é漢", "<s>a</s>", "a\nb", "abab"])
def test_sentencepiece_gguf_encodes_like_its_source(tmp_path: Path, text: str) -> None:
    source = byte_fallback()
    model = load(write_gguf(tmp_path / "v.gguf", source, "llama", add_bos_token=False))
    assert list(model.encode(text)) == source.encode(text).ids
    assert model.decode(model.encode(text), False) == source.decode(source.encode(text).ids, skip_special_tokens=False)
    assert model.end_ids == (source.token_to_id("</s>"),)


@pytest.mark.parametrize("text", ["hello a b", " a", "x 12", "<s>ll", "é"])
def test_byte_level_gguf_encodes_like_its_source(tmp_path: Path, text: str) -> None:
    source = byte_level()
    model = load(write_gguf(tmp_path / "v.gguf", source, "gpt2", pre="gpt-2"))
    assert list(model.encode(text)) == source.encode(text).ids
    assert model.decode(model.encode(text), skip_special_tokens=False) == text


def test_begin_token_of_a_gguf(tmp_path: Path) -> None:
    """SentencePiece vocabularies add it unless the file says no; byte-level ones only if it says yes."""
    bos = byte_fallback().token_to_id("<s>")
    sentencepiece = load(write_gguf(tmp_path / "a.gguf", byte_fallback(), "llama"))
    assert sentencepiece.encode("a")[0] == bos
    yes = load(write_gguf(tmp_path / "b.gguf", byte_level(), "gpt2", add_bos_token=True))
    no = load(write_gguf(tmp_path / "c.gguf", byte_level(), "gpt2"))
    assert yes.encode("a") == (yes.encode("<s>")[0], *no.encode("a"))


def test_end_token_behind_a_text_if_the_file_asks_for_it(tmp_path: Path) -> None:
    asked = load(write_gguf(tmp_path / "a.gguf", byte_level(), "gpt2", add_bos_token=True, add_eos_token=True))
    plain = load(write_gguf(tmp_path / "b.gguf", byte_level(), "gpt2"))
    assert asked.encode("hello") == (*plain.encode("<s>"), *plain.encode("hello"), *plain.encode("</s>"))


#: How each name cuts this text.  ``gpt-2``, ``mpt``, ``command-r``, ``starcoder``, ``refact``, ``falcon``,
#: ``llama-bpe``, ``qwen2``, ``deepseek-llm`` and ``-coder`` gave, over their real vocabularies, the ids that the
#: tokenizers of that name made of 46 such texts; ``test_gguf_families`` compares with transformers.
TEXT = "I's 1234 o'CL\n\n  u'll\té漢カ한 [x]=//z ½🙂 \r\n"
PIECES = {
    "gpt-2": "I|'s| 1234| o|'|CL|\n\n | u|'ll|\t|é漢カ한| [|x|]=//|z| ½|🙂| \r\n",
    "starcoder": "I|'s| |1|2|3|4| o|'|CL|\n\n | u|'ll|\t|é漢カ한| [|x|]=//|z| |½|🙂| \r\n",
    "llama-bpe": "I|'s| |123|4| o|'CL|\n\n| | u|'ll|\té漢カ한| [|x|]=//|z| |½|🙂| \r\n",
    "qwen2": "I|'s| |1|2|3|4| o|'CL|\n\n| | u|'ll|\té漢カ한| [|x|]=//|z| |½|🙂| \r\n",
    "deepseek-coder": "I|'|s| |1|2|3|4| o|'|CL|\n|\n| | u|'|ll|\té|漢カ한| [|x|]|=|//|z| |½|🙂 |\r|\n",
    "deepseek-llm": "I|'|s| |1|2|3|4| o|'|CL|\n|\n| | u|'|ll|\té|漢カ한| [|x|]=//|z| |½|🙂| |\r|\n",
    "deepseek-v3": "I|'s| |123|4| o|'CL|\n\n| | u|'ll|\té|漢カ|한| [|x|]=//|z| |½|🙂| \r\n",
    "gpt-4o": "I's| |123|4| o|'CL|\n\n| | u'll|\té漢カ한| [|x|]=//|z| |½|🙂| \r\n",
    "tekken": "I|'s| |1|2|3|4| o|'CL|\n\n| | u|'ll|\té漢カ한| [|x|]=//|z| |½|🙂| \r\n",
}  # fmt: skip
SAME = {
    "mpt": "gpt-2", "olmo": "gpt-2", "smollm": "starcoder", "refact": "starcoder", "command-r": "starcoder",
    "llama3": "llama-bpe", "llama-v3": "llama-bpe", "smaug-bpe": "llama-bpe", "deepseek-r1-qwen": "qwen2",
    "llama4": "gpt-4o",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(CUTTINGS) - {"falcon"}))
def test_where_text_is_cut(name: str) -> None:
    alphabet = byte_alphabet()
    cut = CUTTINGS[name]().pre_tokenizer.pre_tokenize_str(TEXT)
    assert [bytes(alphabet[char] for char in piece).decode() for piece, _ in cut] == PIECES[SAME.get(name, name)].split(
        "|"
    )


def test_where_falcon_cuts() -> None:
    """Its rule for digits comes after the spelling as bytes, and takes a byte spelt as a fraction for a digit."""
    cut = CUTTINGS["falcon"]().pre_tokenizer.pre_tokenize_str("it's $12345, éü=漢 ok")
    assert [piece for piece, _ in cut] == [
        *("it", "'", "s", "\u0120", "$", "123", "45", ",", "\u0120\u00c3\u00a9\u00c3", "\u00bc", "="),
        *("\u00e6", "\u00bc", "\u00a2", "\u0120ok"),
    ]


def test_a_piece_that_is_a_token_stays_whole_where_its_family_says_so(tmp_path: Path) -> None:
    """Llama 3 has tokens that no merge makes."""
    source = byte_level(("\u0120a", "he"))
    vocab = source.get_vocab()
    tokens = [*sorted(vocab, key=vocab.__getitem__), "hell"]
    types = [3 if token in ("<s>", "</s>") else 1 for token in tokens]
    merges = ["\u0120 a", "h e"]
    for pre, expected in (("llama-bpe", ["hell"]), ("smaug-bpe", ["he", "l", "l"])):
        path = write_keys(tmp_path / "v.gguf", tokens, types, "gpt2", pre=pre, merges=merges, bos_token_id=vocab["<s>"])
        ids = load(path).encode("hell")
        begin = ["<s>"] if pre == "llama-bpe" else []  # files of Llama 3 that do not say begin texts with it
        assert [tokens[index] for index in ids] == [*begin, *expected]


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        ("gpt2", {"pre": "odd"}, r"tokenizer\.ggml\.pre = 'odd' is not supported \(valid: command-r, deepseek-coder,"),
        ("gpt2", {"pre": "qwen3"}, r"pre = 'qwen3' is not supported; did you mean 'qwen2'\?"),
        ("gpt2", {"pre": None}, r"tokenizer\.ggml\.pre is missing, so how text is cut is not known"),
        ("t5", {}, r"tokenizer\.ggml\.model = 't5' is not supported \(valid: gpt2, llama\)"),
        ("gpt2", {"merges": ["h e", "q zzz"]}, r"tokenizer\.ggml\.merges do not fit the vocabulary: .*zzz"),
        ("gpt2", {"eos_token_id": 999}, r"eos_token_id = 999: the vocabulary has ids 0 to 260"),
        ("gpt2", {"bos_token_id": None, "add_bos_token": True}, r"add_bos_token = true, and .*bos_token_id is missing"),
    ],
)
def test_unknown_kinds_of_gguf_vocabulary_are_refused_by_name(
    tmp_path: Path, kind: str, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(write_gguf(tmp_path / "v.gguf", byte_level(), kind, **keys))
    assert "v.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"scores": [0.5]}, "scores: expected one score per token"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces = True is not supported"),
        ({"precompiled_charsmap": [1, 2]}, r"precompiled_charsmap = \.\.\. is not supported"),
    ],
)
def test_sentencepiece_settings_that_would_be_ignored_are_refused(
    tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write_gguf(tmp_path / "v.gguf", byte_fallback(), "llama", **keys))


@pytest.mark.parametrize(
    ("tokens", "types", "said"),
    [
        (["a", "a"], [1, 1], "duplicates"),
        (["a", "b"], [1], "not one token_type per token"),
        (["a", "b"], [1, 9], "'b' has the unknown type 9"),
        (["<unk>", "<0x00>", "<0x0A>"], [2, 6, 6], "2 of 256 byte tokens"),
    ],
)
def test_vocabularies_that_do_not_fit_themselves(
    tmp_path: Path, tokens: list[str], types: list[int], said: str
) -> None:
    path = write_keys(tmp_path / "v.gguf", tokens, types, "llama", scores=[0.0] * len(tokens))
    with pytest.raises(ConfigError, match=said):
        load(path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not a GGUF"),
        (b"nope", "begins with"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "requires a buffer"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60), "ends behind the file"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**60), "ends behind the file"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 77), "77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "has no tokenizer"),
    ],
)
def test_damaged_gguf_files_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=why) as caught:
        load(path)
    assert "bad.gguf" in str(caught.value)


def test_metadata_equals_the_reference_reader(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v.gguf", byte_fallback(), "llama", add_bos_token=True, chat_template="é")
    ours = read_metadata(path)
    fields = {name: field for name, field in gguf.GGUFReader(path).fields.items() if not name.startswith("GGUF.")}
    assert ours == {name: field.contents() for name, field in fields.items()}
