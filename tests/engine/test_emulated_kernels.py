"""The default model in float32 on the CUDA kernels, which the emulator runs: the whole engine gives the tokens of the
torch executor, with a shared prefix, chunks of prompts beside decode rows, captured steps, and a preemption."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from tests.executors.deferred import DeferredDevice, DeferredExecutor
from tests.support import one_second

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.messages import SamplingParams, Submit
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.text.tokenizer import load_text_model

PROMPTS = (
    "You are a helpful guide. Question: what is the capital of Italy? Answer:",
    "You are a helpful guide. Question: name a prime number. Answer:",
    "One, two, three,",
)


def run(executor: Any, config: Config, rounds: int, new_tokens: int) -> tuple[Simulator, list[list[int]]]:
    """Ids of the prompts, ``rounds`` times over, greedy at first and seeded then; they arrive one after the other."""
    sim = Simulator(config, executor, one_second, sampler="standard")
    model = load_text_model(config.model)
    for index in range(rounds * len(PROMPTS)):
        temperature, prompt = float(index >= len(PROMPTS)), PROMPTS[index % len(PROMPTS)]
        sampling = SamplingParams(
            temperature=temperature, top_p=0.9, seed=index, max_tokens=new_tokens, ignore_eos=True
        )
        sim.at(1.7 * index, Submit(str(index), tuple(model.encode(prompt)), sampling))
    sim.run()
    executor.close()
    ids: list[list[int]] = [[] for _ in range(rounds * len(PROMPTS))]
    for emit in sim.emitted:
        for row in emit.rows:
            ids[int(row.rid)] += row.token_ids
    return sim, ids


def settings(depth: Literal[1, 2], num_blocks: int) -> Config:
    return Config(
        paranoid=True,
        scheduler=SchedulerConfig(token_budget=12, max_running=3, depth=depth),
        allocator=AllocatorConfig(block_size=4, num_blocks=num_blocks),
        executor=ExecutorConfig(dtype="fp32", weights="fp32", kv_dtype="fp32", threads=1),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "rounds", "new_tokens", "num_blocks"),
    [
        (2, 1, 7, 11),
        pytest.param(1, 3, 24, 20, marks=pytest.mark.soak),
        pytest.param(2, 3, 24, 20, marks=pytest.mark.soak),
    ],
)
def test_the_default_model_on_emulated_kernels(
    depth: Literal[1, 2], rounds: int, new_tokens: int, num_blocks: int
) -> None:
    """All layers.  On the device nothing runs before somebody waits for it, so at depth 2 ids go straight from a step
    to the next."""
    config = settings(depth, num_blocks)
    _, expected = run(TorchExecutor(None, config), config, rounds, new_tokens)
    device = DeferredDevice()
    sim, made = run(DeferredExecutor(None, config, device), config, rounds, new_tokens)
    assert made == expected
    assert sim.actors.host.stats()["preemptions"] >= 1
    assert sim.actors.allocator.stats()["hit_tokens"] >= 4
    assert device.captured == 3
    assert device.most_waiting == depth
