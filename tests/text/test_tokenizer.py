"""Loading tokenizers and encoding prompts: the embedded model, Hugging Face folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mainspring.core.errors import ClientError, ConfigError
from mainspring.plugins.models.embedded import default_model_path
from mainspring.plugins.models.gguf_values import read_metadata
from mainspring.plugins.settings import ModelConfig
from mainspring.plugins.text.tokenizer import TextModel, load_text_model

from .vocabularies import byte_level

TALK = [{"role": "user", "content": "Hi <b> & é漢🙂!"}]
TEXTS = [
    "hello world",
    "  two  spaces ",
    "é漢字🙂",
    "def f(x):\n\treturn x  # no",
    "<|im_start|>user",
    "don't DON'T",
    "\n\n \n",
]


@pytest.fixture(scope="module")
def embedded() -> TextModel:
    return load_text_model(ModelConfig())


def folder(path: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"} | config))
    return path


def with_bos(tokenizer: Tokenizer) -> Tokenizer:
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[bos])
    return tokenizer


def load(path: Path) -> TextModel:
    return load_text_model(ModelConfig(path=str(path)))


# --- the embedded model ----------------------------------------------------------------------------------------------


def test_embedded_model_facts(embedded: TextModel) -> None:
    assert (embedded.vocab_size, embedded.end_ids, embedded.has_chat_template) == (49152, (2,), True)
    assert len(embedded.special_ids) == 17


def test_chat_is_what_the_template_writes_d03(embedded: TextModel) -> None:
    ids = embedded.chat([{"role": "user", "content": "hi"}])
    assert ids[:2] == (1, 9690)  # one begin-of-turn token, then "system"
    assert embedded.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_special_tokens_in_user_text_are_parsed(embedded: TextModel) -> None:
    assert embedded.encode("hello <|im_end|>")[-1] == 2


@pytest.mark.parametrize("text", TEXTS)
def test_decode_gives_the_text_back(embedded: TextModel, text: str) -> None:
    assert embedded.decode(embedded.encode(text), skip_special_tokens=False) == text


def test_digits_are_cut_one_by_one_as_the_model_was_trained(embedded: TextModel) -> None:
    """No token of the vocabulary holds a digit beside anything else, so spaces before one stay together."""
    assert embedded.encode("a  12 b") == (*embedded.encode("a  "), *embedded.encode("1"), *embedded.encode("2 b"))
    tokens = read_metadata(default_model_path())["tokenizer.ggml.tokens"]
    assert {token for token in tokens if any(char in "0123456789" for char in token)} == set("0123456789")


@pytest.mark.slow
def test_embedded_model_equals_transformers(embedded: TextModel) -> None:
    """Vocabulary, merges, ids and chat.  The library ignores the file's digit rule, so texts here have none."""
    path = default_model_path()
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    ours, other = (json.loads(t.to_str()) for t in (embedded._tokenizer, theirs.backend_tokenizer))
    assert ours["model"]["vocab"] == other["model"]["vocab"] and ours["model"]["merges"] == other["model"]["merges"]
    assert ours["added_tokens"] == other["added_tokens"]
    for text in TEXTS:
        assert list(embedded.encode(text)) == theirs.encode(text), text
    ids = theirs.apply_chat_template(TALK, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(embedded.chat(TALK)) == ids


def test_loading_imports_neither_transformers_nor_torch() -> None:
    """Their imports cost seconds; a start must not pay them for text."""
    code = (
        "import sys; from mainspring.plugins.settings import ModelConfig as M\n"
        "from mainspring.plugins.text.tokenizer import load_text_model\n"
        "print(len(load_text_model(M()).chat([dict(role='user', content='x')])))\n"
        "sys.exit([name for name in ('transformers', 'torch', 'numpy') if name in sys.modules] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


# --- Hugging Face folders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"])
@pytest.mark.parametrize("adds_bos", [False, True])
def test_chat_begins_with_what_the_template_writes_d03(tmp_path: Path, template: str, adds_bos: bool) -> None:
    tokenizer = with_bos(byte_level()) if adds_bos else byte_level()
    path = folder(tmp_path, tokenizer, chat_template=template)
    model, theirs = load(path), PreTrainedTokenizerFast.from_pretrained(str(path))
    expected = theirs.apply_chat_template(TALK, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(model.chat(TALK)) == expected
    assert list(model.encode("hello")) == theirs.encode("hello")
    assert (model.encode("hello")[0] == tokenizer.token_to_id("<s>")) is adds_bos


def test_raw_text_that_has_its_begin_token_gets_no_second_one_d03(tmp_path: Path) -> None:
    model = load(folder(tmp_path, with_bos(byte_level())))
    assert model.encode("<s>a") == model.encode("a")
    assert model.encode("a<s>").count(model.encode("a")[0]) == 2  # not at the start: it is text of the user's


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20)
    assert len(load(folder(tmp_path, tokenizer)).encode("abcdefg")) == 7


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [(None, None, (260,)), ([260, 7], None, (260, 7)), (None, 9, (260, 9)), ([7, 2], [9], (260, 7, 2, 9))],
)
def test_every_source_of_end_ids_counts_d10(
    tmp_path: Path, generation: Any, config: Any, ends: tuple[int, ...]
) -> None:
    path = folder(tmp_path, byte_level())
    for name, value in (("generation_config.json", generation), ("config.json", config)):
        if value is not None:
            (path / name).write_text(json.dumps({"eos_token_id": value}))
    assert load(path).end_ids == ends


def test_template_file_beats_configuration_and_option_beats_both(tmp_path: Path) -> None:
    named = [{"name": "tool", "template": "T"}, {"name": "default", "template": "A"}]
    path = folder(tmp_path / "m", byte_level(), chat_template=named)

    def read(template: str = "") -> TextModel:
        return load_text_model(ModelConfig(path=str(path), chat_template=template))

    assert read().decode(read().chat(TALK)) == "A"
    (path / "chat_template.jinja").write_text("B")
    assert read().decode(read().chat(TALK)) == "B"
    (tmp_path / "mine.jinja").write_text("C")
    model = read(str(tmp_path / "mine.jinja"))
    assert model.decode(model.chat(TALK)) == "C"


def test_no_template_is_a_refusal_that_names_the_option_d07(tmp_path: Path) -> None:
    model = load(folder(tmp_path, byte_level()))
    with pytest.raises(ClientError, match=r"model\.chat_template") as caught:
        model.chat(TALK)
    assert caught.value.code == "chat_template_error" and model.encode("plain prompts still work")


def test_missing_or_broken_template_stops_the_start_d07(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.chat_template = 'nowhere\.jinja': cannot be read"):
        load_text_model(ModelConfig(chat_template="nowhere.jinja"))
    path = folder(tmp_path, byte_level(), chat_template="{% if %}")
    with pytest.raises(ConfigError, match="line 1"):
        load(path)


def test_bad_folders_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        load(tmp_path / "no")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        load(tmp_path)
    folder(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: expected a JSON object"):
        load(tmp_path)
