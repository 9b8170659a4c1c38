"""A driver that runs sequences through an executor with messages of its own: no scheduler, no allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.native_kernels import native_library

from mainspring.core.config import AllocatorConfig, ExecutorConfig
from mainspring.core.messages import GrantedRow, StepLaunch, StepResult
from mainspring.core.policy import ExecutorInfo, SampleOutput
from mainspring.plugins.executors.native import NativeExecutor
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model
from mainspring.plugins.settings import Config, ModelConfig


def greedy(logits: Any, plan: Any) -> SampleOutput:
    """The sampler of these tests: the first id with the largest logit."""
    return SampleOutput(logits.argmax(-1).tolist(), [])


class Driver:
    """Owns block tables (scattered over the pool by ``seed``) and the step counter of one loaded executor."""

    def __init__(self, executor: TorchExecutor, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.executor, self.block_size = executor, block_size
        self.free = list(range(num_blocks))
        Random(seed).shuffle(self.free)
        self.tables: dict[str, list[int]] = {}
        self.step = 0
        self.logits: list[torch.Tensor] = []

    def row(self, rid: str, start: int, ids: Sequence[int] | None, samples: bool) -> GrantedRow:
        """A row with room; ``ids`` None continues with what ``rid`` sampled last."""
        count = 1 if ids is None else len(ids)
        table = self.tables.setdefault(rid, [])
        while len(table) * self.block_size < start + count:
            table.append(self.free.pop())
        slots = tuple(
            table[at // self.block_size] * self.block_size + at % self.block_size for at in range(start, start + count)
        )
        return GrantedRow(rid, start, count, None if ids is None else tuple(ids), samples, tuple(table), slots)

    def run(self, *rows: GrantedRow, **fields: Any) -> StepResult:
        """One step; its logits are kept in ``self.logits``."""
        self.step += 1

        def sample(logits: Any, plan: Any) -> SampleOutput:
            self.logits.append(logits.clone())
            return greedy(logits, plan)

        return self.executor.execute(StepLaunch(self.step, tuple(rows), None, **fields), sample)

    def generate(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, chunk: int, stagger: int = 0
    ) -> list[list[int]]:
        """Greedy ids of every prompt, prefilled in chunks; prompt i joins ``i * stagger`` steps late."""
        out: list[list[int]] = [[] for _ in prompts]
        done = [0] * len(prompts)
        tick = 0
        while any(len(made) < new_tokens for made in out):
            rows, owners = [], []
            for index, prompt in enumerate(prompts):
                if tick < index * stagger or len(out[index]) >= new_tokens:
                    continue
                rid = str(index)
                if done[index] < len(prompt):
                    ids = prompt[done[index] : done[index] + chunk]
                    rows.append(self.row(rid, done[index], ids, done[index] + len(ids) == len(prompt)))
                    done[index] += len(ids)
                else:
                    rows.append(self.row(rid, len(prompt) + len(out[index]) - 1, None, True))
                if rows[-1].samples:
                    owners.append(index)
            tick += 1
            result = self.run(*rows) if rows else None
            for index, token in zip(owners, result.token_ids if result else (), strict=True):
                out[index].append(token)
        return out


Start = Callable[..., Driver]
BACKENDS: dict[str, type[TorchExecutor]] = {"torch": TorchExecutor, "native": NativeExecutor}


@pytest.fixture(params=list(BACKENDS), scope="module")
def backend(request: pytest.FixtureRequest) -> type[TorchExecutor]:
    """Each executor that this machine has."""
    if request.param == "native":
        native_library()
    return BACKENDS[request.param]


@pytest.fixture
def start(backend: type[TorchExecutor]) -> Iterator[Start]:
    """``start(path, block_size=4, num_blocks=64, **executor options)`` -> a Driver over a loaded executor."""
    executors = []

    def make(
        path: Path | str, block_size: int = 4, num_blocks: int = 64, max_context: int = 0, seed: int = 0, **options: Any
    ) -> Driver:
        config = Config(
            executor=ExecutorConfig(threads=1, **({"weights": "fp32", "dtype": "fp32", "kv_dtype": "fp32"} | options)),
            allocator=AllocatorConfig(block_size=block_size, num_blocks=num_blocks),
            model=ModelConfig(path=str(path), max_context=max_context),
        )
        executor = backend(None, config)
        executors.append(executor)
        info = executor.load(print)
        assert isinstance(info, ExecutorInfo) and info.num_blocks == num_blocks
        return Driver(executor, num_blocks, block_size, seed)

    yield make
    for executor in executors:
        executor.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny Llama folder."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def driver_of() -> type[Driver]:
    """The Driver class, for tests that load an executor of their own."""
    return Driver
