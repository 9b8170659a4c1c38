"""Every policy runs the real model end to end, with shared prefixes and preemption, and gives every request the same
greedy text as ``fcfs`` without sharing."""

from __future__ import annotations

import pytest
from tests.engine.loaded import Loaded, config, outputs
from tests.support import one_second

from mainspring.core.messages import SamplingParams, Submit
from mainspring.core.registry import Registry
from mainspring.plugins.settings import SchedulerConfig
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


def run(use: str, allocator: str, executor: Loaded) -> dict[str, list[int]]:
    settings = config(SchedulerConfig(use=use, token_budget=12, max_running=4), allocator)
    sim = Simulator(settings, executor, one_second, sampler="standard")
    model = load_text_model(settings.model)
    for index, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
        ids = tuple(model.encode(prompt))
        sim.at(1.7 * index, Submit(str(index), ids, sampling, tenant="ab"[index % 2], priority=index % 3))
    sim.run()
    assert sim.actors.host.stats()["policy_faults"] == 0
    return outputs(sim.emitted)


@pytest.fixture(scope="module")
def reference(executor: Loaded) -> dict[str, list[int]]:
    return run("fcfs", "paged", executor)


@pytest.mark.parametrize("use", POLICIES)
def test_same_text_as_fcfs(use: str, executor: Loaded, reference: dict[str, list[int]]) -> None:
    made = run(use, "prefix", executor)
    assert made == reference
    assert all(len(ids) == 10 for ids in made.values())
