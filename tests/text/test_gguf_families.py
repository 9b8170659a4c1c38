"""A vocabulary in a GGUF file encodes like the tokenizer it was taken from (H-07).

The references are the tokenizers of the families as transformers builds them, transformers' own reading of the same
file, and sentencepiece.
"""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from tests.text.gguf_files import parts, texts, trained, write_gguf, write_keys
from tokenizers import Tokenizer

from mainspring.plugins.settings import ModelConfig
from mainspring.plugins.text.tokenizer import TextModel, load_text_model

TEXTS = texts(500)
DECOMPOSED = ["cafe\u0301 nai\u0308ve", "\u1100\u1161 A\u030a", " e\u0301\u0323 1\u0301"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CLASSES = {
    "qwen2": "Qwen2Tokenizer",
    "deepseek-r1-qwen": "Qwen2Tokenizer",
    "gpt-2": "GPT2Tokenizer",
    "mpt": "GPTNeoXTokenizer",
    "olmo": "GPTNeoXTokenizer",
    "command-r": "CohereTokenizer",
}


def load(path: Path) -> TextModel:
    return load_text_model(ModelConfig(path=str(path)))


@pytest.fixture(scope="module")
def source() -> Tokenizer:
    return trained()


@pytest.mark.parametrize("pre", list(CLASSES))
def test_as_a_gguf_and_as_a_folder_h07(tmp_path: Path, source: Tokenizer, pre: str) -> None:
    """Same ids, same chat prompt, same end ids, and the same text back."""
    vocab, merges = parts(source)
    original = getattr(transformers, CLASSES[pre])(
        vocab=vocab, merges=merges, bos_token="<s>", eos_token="</s>", unk_token="</s>", pad_token="</s>",
        cls_token="</s>", sep_token="</s>", mask_token="</s>", additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
    original.chat_template = TEMPLATE
    original.save_pretrained(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text("{}")
    backend = Tokenizer.from_file(str(tmp_path / "folder" / "tokenizer.json"))
    path = write_gguf(tmp_path / "v.gguf", backend, "gpt2", pre=pre, add_bos_token=False)
    ours, folder = load(path), load(tmp_path / "folder")
    for text in [*TEXTS, *DECOMPOSED]:
        ids = ours.encode(text)
        assert list(ids) == original.encode(text, add_special_tokens=False), text
        assert ids == tuple(backend.encode(text, add_special_tokens=False).ids)
        assert ours.decode(ids) == folder.decode(ids)
    assert ours.end_ids == folder.end_ids != ()
    with_template = load_text_model(ModelConfig(path=str(path), chat_template=str(_template(tmp_path))))
    talk = [{"role": "user", "content": "Hi  <|im_end|> 12 caf\u00e9"}, {"role": "assistant", "content": "\u6f22"}]
    assert with_template.chat(talk) == folder.chat(talk)


def _template(folder: Path) -> Path:
    file = folder / "chat.jinja"
    file.write_text(TEMPLATE)
    return file


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "smaug-bpe", "tekken", "gpt-4o", "llama4", "qwen2"])
def test_as_transformers_reads_the_same_file_h07(tmp_path: Path, source: Tokenizer, pre: str) -> None:
    """It composes no characters for Qwen, as the original does."""
    path = write_gguf(tmp_path / "v.gguf", source, "gpt2", pre=pre, add_bos_token=True)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=path.name)
    ours = load(path)
    for text in TEXTS:
        if not text.startswith("<s>") and (pre != "qwen2" or unicodedata.is_normalized("NFC", text)):
            assert list(ours.encode(text)) == theirs.encode(text), text


@pytest.fixture(scope="module")
def pieces() -> Any:
    """A small sentencepiece model with byte fallback, trained here."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts(400, seed=2)), model_writer=made, model_type="bpe", vocab_size=600,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        user_defined_symbols=["<|im_start|>", "    "], split_digits=True, minloglevel=2, character_coverage=0.98,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def test_sentencepiece_vocabularies_h07(tmp_path: Path, pieces: Any) -> None:
    """Scores, byte fallback, runs of spaces, pieces that the user defined."""
    ids = range(pieces.get_piece_size())
    tokens = [pieces.id_to_piece(index) for index in ids]
    types = [
        2 if pieces.is_unknown(index)
        else 3 if pieces.is_control(index)
        else 6 if pieces.is_byte(index)
        else 4 if tokens[index] == "<|im_start|>"
        else 1
        for index in ids
    ]  # fmt: skip
    path = write_keys(
        tmp_path / "v.gguf", tokens, types, "llama", scores=[float(pieces.get_score(index)) for index in ids],
        bos_token_id=pieces.bos_id(), eos_token_id=pieces.eos_id(), add_bos_token=False,
    )  # fmt: skip
    ours = load(path)
    checked = 0
    for text in TEXTS:
        if "<" in text or not text:  # markers are cut out of a text before it is cut; here they are text
            continue
        assert list(ours.encode(text)) == pieces.encode(text), text
        assert ours.decode(ours.encode(text)) == pieces.decode(pieces.encode(text))
        checked += 1
    assert checked > 300
