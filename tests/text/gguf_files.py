"""GGUF files that hold only a vocabulary, and texts that tokenizers disagree on."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import gguf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
_LINES = (
    "It's they'll WE'VE don't DON'T o'clock I'm 1 12 345 2026 1,000.50 3rd x2 ½ \u0661\u0662 hello Hello HELLO",
    "world the The tHE snake_case camelCase __init__ return() => != [x] {y} // # $5 50% a@b.c http://x.y/z?q=1",
    "café naïve über Ωmega Жж 漢字 カタカナ 한글",
    "\u0639\u0631\u0628\u064a \u0e44\u0e17\u0e22 🙂 \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea \u201cquoted\u201d \u2014 \u2026 \u3002 \u00a0 \u2581 \u212a",
    "<s> </s> <|im_start|> <|im_end|>",
)
WORDS = " ".join(_LINES).split(" ")
GAPS = (" ", " ", " ", "", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n    ")


def texts(count: int, seed: int = 0) -> list[str]:
    """Words, digits, emoji, scripts, special markers, with every kind of space between, before and behind them."""
    random = Random(seed)
    made = [""]
    while len(made) < count:
        parts = [random.choice(WORDS) + random.choice(GAPS) for _ in range(random.randint(1, 12))]
        made.append(random.choice(("", "", " ", "  ", "\n")) + "".join(parts))
    return made


def trained(size: int = 640) -> Tokenizer:
    """A byte-level vocabulary of ``size`` tokens, learnt from such texts, the special ones at its end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL), initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(texts(300, seed=1), trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def parts(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary without special tokens, and merges."""
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


def write_keys(path: Path, tokens: list[str], types: list[int], kind: str, **keys: Any) -> Path:
    """A file with this vocabulary and further ``tokenizer.ggml`` keys."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in keys.items():
        kind_of_value = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(f"tokenizer.ggml.{key}", value, kind_of_value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_gguf(path: Path, tokenizer: Tokenizer, kind: str, **keys: Any) -> Path:
    """The vocabulary of ``tokenizer``, byte-level cut like GPT-2's unless ``keys`` say otherwise."""
    vocab, merges = tokenizer.get_vocab(), parts(tokenizer)[1]
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = tokenizer.get_added_tokens_decoder()
    types = [
        3 if i in special else 2 if t == "<unk>" else 6 if t.startswith("<0x") else 1 for i, t in enumerate(tokens)
    ]
    stated: dict[str, Any] = {"bos_token_id": vocab["<s>"], "eos_token_id": vocab["</s>"]}
    if kind == "llama":
        ranks = {left + right: -1.0 - rank for rank, (left, right) in enumerate(merges)}
        stated["scores"] = [ranks.get(token, -1000.0) for token in tokens]
    else:
        stated |= {"merges": [" ".join(pair) for pair in merges], "pre": "gpt-2"}
    return write_keys(path, tokens, types, kind, **{k: v for k, v in (stated | keys).items() if v is not None})
