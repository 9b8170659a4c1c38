"""Prompts of text as a workload: encoded once by the model's own tokenizer, taken in turns."""

from __future__ import annotations

from functools import lru_cache

from ..settings import ModelConfig
from ..simulation.traffic import Traffic
from ..text.tokenizer import load_text_model
from ..workloads.scenario import Scenario


@lru_cache(maxsize=4)
def encoded(prompts: tuple[str, ...], path: str, chat: bool) -> tuple[tuple[int, ...], ...]:
    """Token ids of each prompt; ``chat``: as a user's message in the model's own template."""
    model = load_text_model(ModelConfig(path=path))
    if chat:
        return tuple(model.chat([{"role": "user", "content": prompt}]) for prompt in prompts)
    return tuple(model.encode(prompt) for prompt in prompts)


class PromptTraffic(Traffic):
    """A scenario whose rows say the prompts in turns."""

    def __init__(self, made: Scenario, seed: int, vocab_size: int, ids: tuple[tuple[int, ...], ...]) -> None:
        super().__init__(made, seed, vocab_size)
        self._ids = ids

    def prompt(self, number: int) -> tuple[int, ...]:
        return self._ids[number % len(self._ids)]
