"""The fake executor notices wrong memory, and lets a test set step time, tokens and logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mainspring.core.config import AllocatorConfig, Config, SchedulerConfig
from mainspring.core.messages import GrantedRow, SamplingParams, StepLaunch, Submit
from mainspring.core.policy import SampleOutput
from mainspring.testing import FakeExecutor, Simulator, expected_ids


def launch(step: int, rid: str, start: int, ids: tuple[int, ...] | None, table: tuple[int, ...]) -> StepLaunch:
    count = 1 if ids is None else len(ids)
    slots = tuple(table[at // 4] * 4 + at % 4 for at in range(start, start + count))
    return StepLaunch(step, (GrantedRow(rid, start, count, ids, True, table, slots),), None)


def no_sampler(logits: Any, plan: Any) -> SampleOutput:
    raise AssertionError("a script decides here")


def test_tokens_depend_on_the_whole_context() -> None:
    executor = FakeExecutor(8, 4)
    first = executor.execute(launch(1, "a", 0, (5, 6, 7), (2,)), no_sampler)
    second = executor.execute(launch(2, "a", 3, None, (2,)), no_sampler)
    assert [*first.token_ids, *second.token_ids] == expected_ids((5, 6, 7), 2)


def test_a_stolen_block_changes_the_text_and_an_unwritten_slot_is_an_error() -> None:
    executor = FakeExecutor(8, 4)
    first = executor.execute(launch(1, "a", 0, (5, 6, 7, 8), (2,)), no_sampler)
    executor.execute(launch(2, "thief", 0, (9, 9), (2,)), no_sampler)
    second = executor.execute(launch(3, "a", 4, first.token_ids, (2, 3)), no_sampler)
    assert [*first.token_ids, *second.token_ids] != expected_ids((5, 6, 7, 8), 2)
    with pytest.raises(AssertionError, match="never written"):
        executor.execute(launch(4, "b", 2, (1,), (5,)), no_sampler)


def test_a_script_says_which_tokens_come_out() -> None:
    executor = FakeExecutor(8, 4, script=lambda rid, position, checksum: position * 10)
    assert executor.execute(launch(1, "a", 0, (5, 6), (1,)), no_sampler).token_ids == (20,)


def test_logits_go_through_the_sampler() -> None:
    """The row that fails is named; the other's token is the sampler's."""
    seen: list[Any] = []

    def largest(logits: Any, plan: Any) -> SampleOutput:
        seen.append((logits.shape, logits.dtype, plan))
        return SampleOutput([int(row.argmax()) for row in logits], [(0, "no finite logit")])

    executor = FakeExecutor(8, 4, vocab_size=10, logits=lambda rid, position: np.eye(10)[position])
    result = executor.execute(launch(1, "a", 0, (5, 6, 7), (1,)), largest)
    assert (result.token_ids, result.failed) == ((3,), (("a", "no finite logit"),))
    assert seen == [((1, 10), np.float32, None)]


def test_logits_of_a_whole_engine() -> None:
    config = Config(scheduler=SchedulerConfig(token_budget=16), allocator=AllocatorConfig(block_size=4))
    executor = FakeExecutor(16, 4, vocab_size=50, logits=lambda rid, position: np.eye(50)[position + len(rid)])
    simulator = Simulator(config, executor)
    short = SamplingParams(max_tokens=2, ignore_eos=True)
    simulator.at(0.0, Submit("four", (1, 2, 3), SamplingParams(max_tokens=3)), Submit("x", (4, 5), short))
    simulator.run()
    out: dict[str, list[int]] = {}
    for emit in simulator.emitted:
        for row in emit.rows:
            out.setdefault(row.rid, []).extend(row.token_ids)
    assert out == {"four": [7, 8, 9], "x": [3, 4]}


def test_the_time_of_a_step_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("mainspring.plugins.testing.fake_executor.time.sleep", slept.append)
    executor = FakeExecutor(8, 4)
    executor.execute(launch(1, "a", 0, (5,), (1,)), no_sampler)
    executor.step_s = 0.25
    executor.execute(launch(2, "a", 1, None, (1,)), no_sampler)
    assert slept == [0.25]
