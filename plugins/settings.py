"""The whole configuration: the kernel's tables and those of the edges, one attribute per table of ``plugins.toml``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ..core import config as core
from ..core.config import NonNegInt, PosInt, Section


class ModelConfig(Section, frozen=True):
    path: str = ""  # "": the embedded default; else a GGUF file or a Hugging Face folder
    max_context: NonNegInt = 0  # tokens; 0: what the model supports
    chat_template: str = ""  # a file; "": the model's own


class ServerConfig(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8000
    admin_key: str = ""
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0  # running requests may finish for so long on SIGTERM
    max_message_bytes: PosInt = 16 * 2**20


class JournalConfig(Section, frozen=True):
    size: PosInt = 4096  # messages kept in memory
    path: str = "auto"  # JSONL folder; "auto": the user's state folder; "": none
    max_bytes: PosInt = 64 * 2**20  # per process; then the older half is dropped
    prompts: bool = False  # write token ids and text


class LogConfig(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
    prompts: bool = False


class Config(core.Config, frozen=True):
    """Everything that ``plugins.toml`` and ``--set`` may say."""

    model: ModelConfig = ModelConfig()
    server: ServerConfig = ServerConfig()
    journal: JournalConfig = JournalConfig()
    log: LogConfig = LogConfig()
