"""The default model in float32 on the CUDA kernels, which the emulator runs: the whole engine gives the tokens of the
torch executor, with a shared prefix, chunks of prompts beside decode rows, captured steps, and a preemption."""

from __future__ import annotations

from typing import Any

import pytest
from tests.executors.emulated import EmulatedDevice
from tests.support import one_second

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.messages import SamplingParams, Submit
from mainspring.plugins.executors.cupy import CupyExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.text.tokenizer import load_text_model

PROMPTS = (
    "You are a helpful guide. Question: what is the capital of Italy? Answer:",
    "You are a helpful guide. Question: name a prime number. Answer:",
    "One, two, three,",
)


def run(executor: Any, config: Config) -> tuple[Simulator, list[list[int]]]:
    """Greedy ids of the prompts, which arrive one after the other."""
    sim = Simulator(config, executor, one_second, sampler="standard")
    model = load_text_model(config.model)
    sampling = SamplingParams(temperature=0.0, max_tokens=7, ignore_eos=True)
    for index, prompt in enumerate(PROMPTS):
        sim.at(1.7 * index, Submit(str(index), tuple(model.encode(prompt)), sampling))
    sim.run()
    executor.close()
    ids: list[list[int]] = [[] for _ in PROMPTS]
    for emit in sim.emitted:
        for row in emit.rows:
            ids[int(row.rid)] += row.token_ids
    return sim, ids


@pytest.mark.slow
def test_the_default_model_on_emulated_kernels() -> None:
    config = Config(
        paranoid=True,
        scheduler=SchedulerConfig(token_budget=12, max_running=3, depth=2),
        allocator=AllocatorConfig(block_size=4, num_blocks=11),
        executor=ExecutorConfig(dtype="fp32", weights="fp32", kv_dtype="fp32", threads=1),
    )
    _, expected = run(TorchExecutor(None, config), config)
    device = EmulatedDevice()
    sim, made = run(CupyExecutor(None, config, device), config)
    assert made == expected
    assert sim.actors.host.stats()["preemptions"] >= 1
    assert sim.actors.allocator.stats()["hit_tokens"] >= 4
    assert device.captured == 3
