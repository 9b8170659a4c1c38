"""Every policy runs the real model end to end, with shared prefixes and preemption, and gives every request the same
greedy text as ``fcfs`` without sharing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import one_second

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.messages import SamplingParams, StepLaunch, StepResult, Submit
from mainspring.core.policy import ExecutorInfo
from mainspring.core.registry import Registry
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.text.tokenizer import load_text_model

pytestmark = pytest.mark.slow
POLICIES = [info.name for info in Registry().available("scheduler")]
PROMPTS = [
    "You are a helpful guide. Question: what is the capital of Italy? Answer:",
    "You are a helpful guide. Question: name a prime number. Answer:",
    "The sun rises in the",
    "def fibonacci(n):\n",
    "One, two, three,",
    "Water boils at a temperature of",
]


def config(use: str, allocator: str) -> Config:
    return Config(
        paranoid=True,
        scheduler=SchedulerConfig(use=use, token_budget=12, max_running=4),
        allocator=AllocatorConfig(use=allocator, block_size=4, num_blocks=24),
        executor=ExecutorConfig(use="torch", dtype="fp32", weights="fp32", kv_dtype="fp32"),
    )


class Loaded:
    """One loaded executor for all runs; a pool that others have written to must not matter."""

    def __init__(self) -> None:
        self.inner = TorchExecutor(None, config("fcfs", "paged"))
        self.info = self.inner.load(lambda line: None)

    def load(self, progress: Callable[[str], None]) -> ExecutorInfo:
        return self.info

    def execute(self, launch: StepLaunch, sample: Any) -> StepResult:
        return self.inner.execute(launch, sample)

    def close(self) -> None:
        """Kept for the next run."""


@pytest.fixture(scope="module")
def executor() -> Iterator[Loaded]:
    loaded = Loaded()
    yield loaded
    loaded.inner.close()


def run(use: str, allocator: str, executor: Loaded) -> dict[str, list[int]]:
    sim = Simulator(config(use, allocator), executor, one_second, sampler="standard")
    model = load_text_model(sim.config.model)  # type: ignore[attr-defined]
    for index, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        ids = tuple(model.encode(prompt))
        sim.at(1.7 * index, Submit(str(index), ids, sampling, tenant="ab"[index % 2], priority=index % 3))
    sim.run()
    outputs: dict[str, list[int]] = {}
    for emit in sim.emitted:
        for row in emit.rows:
            outputs.setdefault(row.rid, []).extend(row.token_ids)
    assert sim.actors.host.stats()["policy_faults"] == 0
    return outputs


@pytest.fixture(scope="module")
def reference(executor: Loaded) -> dict[str, list[int]]:
    return run("fcfs", "paged", executor)


@pytest.mark.parametrize("use", POLICIES)
def test_same_text_as_fcfs(use: str, executor: Loaded, reference: dict[str, list[int]]) -> None:
    outputs = run(use, "prefix", executor)
    assert outputs == reference
    assert all(len(ids) == 10 for ids in outputs.values())
