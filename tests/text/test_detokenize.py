"""Incremental decoding: the joined stream equals the full decode, for each kind of tokenizer."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from mainspring.core.errors import ConfigError
from mainspring.plugins.text.detokenize import Detokenizer, Pieces

from .vocabularies import KINDS, byte_fallback, byte_level

TOKENIZERS = {name: make() for name, make in KINDS.items()}
PIECES = {name: Pieces(tokenizer) for name, tokenizer in TOKENIZERS.items()}
JOINED = "👩‍👩‍👧🙂漢字é"


def stream(pieces: Pieces, ids: Sequence[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(pieces, skip)
    return [*(detokenizer.push((token_id,)) for token_id in ids), detokenizer.flush()]


def bytes_as_ids(name: str, text: str) -> list[int]:
    offset = {"byte_level": 0, "byte_fallback": 1}[name]
    return [byte + offset for byte in text.encode()]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_characters_spelt_byte_by_byte_d01_websocket_d1(name: str) -> None:
    shown = stream(PIECES[name], bytes_as_ids(name, JOINED))
    assert "".join(shown) == JOINED == TOKENIZERS[name].decode(bytes_as_ids(name, JOINED))
    assert not any("\ufffd" in text for text in shown)
    assert len([text for text in shown if text]) == len(JOINED)  # each as soon as it is complete


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_long_cjk_never_stalls_websocket_d2(name: str) -> None:
    shown = stream(PIECES[name], bytes_as_ids(name, "漢" * 500))
    assert shown == ["", "", "漢"] * 500 + [""]


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_a_cut_inside_a_character_ends_in_a_replacement_mark_d01(name: str) -> None:
    """The only mark that is not the model's own: at a forced cut, and only there."""
    ids = bytes_as_ids(name, "a漢")[:-1]
    shown = stream(PIECES[name], ids)
    assert shown[:-1] == ["a", "", ""] and set(shown[-1]) == {"\ufffd"}
    assert "".join(stream(PIECES[name], ids[1:])) == TOKENIZERS[name].decode(ids[1:])


def test_a_replacement_mark_of_the_model_is_delivered_websocket_d7() -> None:
    for name in ("byte_level", "byte_fallback"):
        assert stream(PIECES[name], bytes_as_ids(name, "a\ufffd"))[3] == "\ufffd"
    mark = TOKENIZERS["byte_fallback"].get_vocab()["\ufffd"]
    assert stream(PIECES["byte_fallback"], [mark, mark])[:2] == ["\ufffd", "\ufffd"]


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("skip", [True, False])
def test_random_ids_equal_the_tokenizers_own_decode_d01_d02(name: str, skip: bool) -> None:
    """Spaces, first tokens, special tokens anywhere.  Byte runs that are not UTF-8 are left out for byte fallback."""
    tokenizer, rng = TOKENIZERS[name], random.Random(name)
    fallback = name.startswith("byte_fallback")
    choice = [index for index in range(tokenizer.get_vocab_size()) if not fallback or not 0x81 <= index <= 0x100]
    for _ in range(300):
        ids = rng.choices(choice, k=rng.randint(0, 12))
        if fallback and rng.random() < 0.5:
            ids[1:1] = bytes_as_ids("byte_fallback", rng.choice(["é", "漢字", "🙂"]))
        assert "".join(stream(PIECES[name], ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip), ids


@given(st.lists(st.integers(0, TOKENIZERS["byte_level"].get_vocab_size() - 1), max_size=30), st.booleans())
def test_any_bytes_equal_the_full_decode(ids: list[int], skip: bool) -> None:
    """D-01 for byte-level vocabularies, sound UTF-8 or not."""
    assert "".join(stream(PIECES["byte_level"], ids, skip)) == TOKENIZERS["byte_level"].decode(ids, skip)


@given(st.text(max_size=30), st.sampled_from(["byte_level", "byte_fallback"]))
def test_text_survives_the_round_trip_d02(text: str, name: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    assert "".join(stream(PIECES[name], ids)) == TOKENIZERS[name].decode(ids)
    if name == "byte_level" and "<" not in text:
        assert "".join(stream(PIECES[name], ids)) == text


@pytest.mark.parametrize("name", sorted(KINDS))
def test_special_tokens_hidden_or_shown_d08(name: str) -> None:
    """At start, middle and end; one id at a time and all at once."""
    tokenizer = TOKENIZERS[name]
    vocab = tokenizer.get_vocab()
    bos, letter, eos = vocab["<s>"], vocab["a"], vocab["</s>"]
    ids = [bos, letter, bos, letter, eos]
    for skip in (True, False):
        text = "".join(stream(PIECES[name], ids, skip))
        at_once = Detokenizer(PIECES[name], skip)
        assert text == at_once.push(ids) + at_once.flush() == tokenizer.decode(ids, skip_special_tokens=skip)
        assert ("<s>" in text) is ("</s>" in text) is not skip


def test_ids_without_a_token_have_no_text() -> None:
    """A model's table may be larger than its tokenizer (D-05): such an id is counted elsewhere and shows nothing."""
    assert stream(PIECES["byte_level"], [97, 10**6, 98]) == ["a", "", "b", ""]


def test_bad_bytes_do_not_take_back_complete_characters() -> None:
    """Byte fallback: one mark per bad byte, as in the batch decoder, but what was shown stays."""
    ids = [byte + 1 for byte in "漢".encode() + b"\xff\xe6"]
    assert stream(PIECES["byte_fallback"], ids) == ["", "", "漢", "\ufffd", "", "\ufffd"]


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), "Strip with stop > 0"),
        (decoders.Sequence([decoders.Metaspace(), decoders.ByteLevel()]), "Metaspace, ByteLevel"),
    ],
)
def test_decoders_that_cannot_stream_are_refused(decoder: decoders.Decoder, named: str) -> None:
    tokenizer: Tokenizer = byte_level()
    tokenizer.decoder = decoder
    with pytest.raises(ConfigError, match=named):
        Pieces(tokenizer)


def test_first_byte_token_that_is_a_space_is_stripped_like_any_other() -> None:
    tokenizer = byte_fallback()
    ids = [1 + 0x20, tokenizer.get_vocab()["a"]]
    assert "".join(stream(Pieces(tokenizer), ids)) == tokenizer.decode(ids) == "a"
