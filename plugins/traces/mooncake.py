"""Reads the block-hash traces that Mooncake published: arrivals, lengths, and which prompts share which blocks.

One JSON object per line: ``timestamp`` (milliseconds from the start), ``input_length`` and ``output_length`` (tokens)
and ``hash_ids``, one id per 512-token block of the prompt, the last one partial.  Equal ids at the start of two prompts
mean a prefix that could be shared.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...core.errors import ConfigError


class TraceRequest(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: float  # ms
    input_length: int  # tokens
    output_length: int  # tokens
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of ``path`` in file order; a name that ends in ``.gz`` is unpacked.

    Raises ConfigError naming the file and line that is no such request.
    """
    decoder = msgspec.json.Decoder(TraceRequest)
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
            for line in lines:
                number += 1  # read by the handlers below
                if line.strip():
                    yield decoder.decode(line)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: damaged after line {number}: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: line {number} is not a request of a block-hash trace: {error}") from error
