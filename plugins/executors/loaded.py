"""What loading ends with, whichever way a model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ...core.errors import ConfigError
from ..settings import Config
from .batch import Limits, StepBatch
from .memory import Ledger


class Network(Protocol):
    """A model with its KV pool."""

    def forward(self, batch: StepBatch) -> torch.Tensor | None:
        """One step: float32 logits ``[rows, vocab]`` of the rows that sample, None when none does."""

    def copy_blocks(self, copies: tuple[tuple[int, int], ...]) -> None:
        """Copy whole blocks ``(source, target)`` in every layer, in this order."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A network that takes steps, and the facts about it.  ``format``: what was read, for people."""

    name: str
    format: str
    network: Network
    limits: Limits
    end_token_ids: tuple[int, ...]
    ledger: Ledger


def context_limit(config: Config, name: str, max_positions: int, most_positions: int) -> int:
    """Tokens one request may hold: ``model.max_context``, or what the model's positions support (H-04)."""
    asked, most = config.model.max_context, max(max_positions, most_positions)
    if asked > most:
        raise ConfigError(f"model.max_context = {asked}: {name} supports 1 to {most} positions")
    return asked or max_positions
