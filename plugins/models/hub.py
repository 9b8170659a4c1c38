"""Models by hub id, ``owner/name``, for people who have a network: the files go to the hub client's own cache."""

from __future__ import annotations

import re
from pathlib import Path

from ...core.errors import ConfigError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: What a model needs; other formats of the same weights stay where they are.
FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


def is_hub_id(text: str) -> bool:
    """Whether ``text`` has the form ``owner/name``."""
    return _HUB_ID.fullmatch(text) is not None and not text.endswith((".gguf", ".safetensors", ".json"))


def fetch(hub_id: str) -> Path:
    """The folder of ``hub_id`` in the hub client's cache, brought up to date if there is a network.

    Raises ConfigError.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigError(
            f"model.path = {hub_id!r}: there is no such file or folder; "
            "a hub id needs `pip install 'mainspring[models]'`"
        ) from error
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(FILES)))
    except LocalEntryNotFoundError as error:
        raise ConfigError(
            f"model.path = {hub_id!r}: there is no such file or folder here, and the hub cannot be reached to fetch "
            "a model of that id; set model.path to a GGUF file or a Hugging Face folder"
        ) from error
    except Exception as error:  # whatever the client raises for an unknown id, a gated model or a broken connection
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ConfigError(
            f"model.path = {hub_id!r}: there is no such file or folder here, and the hub answered: {reason[0]}"
        ) from error
