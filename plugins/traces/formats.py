"""Every format of recorded traffic by name, read into the one canonical schema."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.errors import ConfigError, nearest
from .canonical import Trace
from .options import checked

#: Format -> what it is.  Each is a module of that name in ``readers``.
FORMATS = {
    "azure": "Azure LLM inference traces 2023: CSV with TIMESTAMP, ContextTokens, GeneratedTokens",
    "burstgpt": "BurstGPT: CSV, by column name",
    "canonical": "our own JSON lines, as the recorder writes them",
    "mooncake": "JSON lines with timestamp (ms), input_length, output_length, hash_ids",
    "servegen": "ServeGen client profiles, of which requests are drawn with a seed",
    "sharegpt": "pairs of lengths: CSV with num_prefill_tokens, num_decode_tokens",
    "vllm_timed": "measured vLLM runs: JSON lines with input_toks, output_toks, arrival_time",
    "vtc": "VTC artifact, Arena clients: one JSON object with responses[]",
    "weka": "agentic coding sessions: one JSON object per session",
}


def read(format: str, path: str | Path, **options: Any) -> Trace:  # noqa: A002 - the word of the field
    """Read ``path`` as ``format``; options are those of the reader.

    Raises ConfigError for an unknown format or option and for whatever is wrong in the file (file, line, column).
    """
    reader = reader_of(format)
    where = f"trace format {format}"
    good = checked(reader, options, where, {"path"})
    try:
        return reader(Path(path), **good)
    except ArithmeticError as error:  # of options that make sense one by one only
        raise ConfigError(f"{where}: cannot be read with {options}: {error}") from error


def reader_of(format: str) -> Callable[..., Trace]:  # noqa: A002
    """The ``read`` function of a format.  Raises ConfigError naming the nearest one."""
    if format not in FORMATS:
        raise ConfigError(f"trace format {format!r}: there is no such format{nearest(format, FORMATS)}")
    found: Callable[..., Trace] = importlib.import_module(f"..readers.{format}", __name__).read
    return found
