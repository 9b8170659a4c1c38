"""A tokenizer from a Hugging Face folder: ``tokenizer.json`` and the small files beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ...core.errors import ConfigError
from .facts import TokenizerFacts

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def load_folder(path: Path) -> tuple[Tokenizer, TokenizerFacts]:
    """Raises ConfigError naming the file that is missing or broken."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{path}: has no tokenizer.json; save the tokenizer in the fast format into this folder")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception for any defect
        raise ConfigError(f"{file}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()  # prompts are refused, never cut
    tokenizer.no_padding()
    config = _json(path / "tokenizer_config.json")
    special = {role: text for role in _ROLES if (text := _content(config.get(role))) is not None}
    ends = [tokenizer.token_to_id(special["eos_token"])] if "eos_token" in special else []
    for name in ("generation_config.json", "config.json"):
        found = _json(path / name).get("eos_token_id")
        ends += found if isinstance(found, list) else [found]
    return tokenizer, TokenizerFacts(
        name=path.name,
        chat_template=_template(path, config),
        special_tokens=special,
        end_ids=tuple(dict.fromkeys(end for end in ends if type(end) is int)),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        tree = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return tree


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _template(path: Path, config: dict[str, Any]) -> str | None:
    """``chat_template.jinja`` wins over the template in the configuration; of several named ones, ``default``."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = [item for item in template if isinstance(item, dict)]
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    return template if isinstance(template, str) else None
