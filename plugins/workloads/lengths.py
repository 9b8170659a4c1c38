"""Lengths as real services have them: percentiles of public traces (``data/README.md`` has sources and licences)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from .draws import Rng

Source = Literal["azure_code", "azure_chat", "sharegpt"]
Column = Literal["input", "output"]


@cache
def _tables() -> dict[str, dict[str, list[float]]]:
    file = Path(__file__).with_name("data") / "lengths.json"
    return msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, list[float]]])


def draw_length(rng: Rng, source: Source, column: Column, scale: int = 1) -> int:
    """Tokens, drawn between the percentiles of ``source`` and divided by ``scale``; at least 1."""
    table = _tables()[source][column]
    return max(1, round(float(np.interp(rng.random() * (len(table) - 1), range(len(table)), table)) / scale))


def longest(source: Source, column: Column, scale: int = 1) -> int:
    """The longest that is ever drawn."""
    return max(1, round(_tables()[source][column][-1] / scale))
