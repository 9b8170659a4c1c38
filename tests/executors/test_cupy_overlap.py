"""Steps that are begun before the one before them ended, on a device that runs nothing until somebody waits; and rows
that are drawn there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from tests.executors.deferred import DeferredDevice, DeferredExecutor
from tests.executors.drawn import OTHERS, Second, cancelled_amid, play
from tests.executors.emulated import EmulatedDevice
from tests.executors.reference import engine_config

from mainspring.core.config import Depth
from mainspring.core.errors import EngineFault
from mainspring.core.messages import GrantedRow, SamplingParams, Started, StepGrant, StepLaunch
from mainspring.core.policy import SampleOutput, SamplerContext
from mainspring.plugins.executors.cupy import CupyExecutor, Options
from mainspring.plugins.executors.cupy_buffers import Staging
from mainspring.plugins.executors.cupy_draw import Draws
from mainspring.plugins.executors.standard_plan import can_draw
from mainspring.plugins.executors.torch import TorchExecutor
from mainspring.plugins.models.tiny import write_tiny_model
from mainspring.samplers.plan import SamplingPlan
from mainspring.samplers.stages import TopP
from mainspring.samplers.standard import StandardSampler
from mainspring.schedulers.host import standard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny Llama whose heads have a size that there are kernels for."""
    made = tmp_path_factory.mktemp("tiny64")
    write_tiny_model(made, head_dim=64)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("graphs", [True, False])
def test_drawn_on_the_device_and_overlapped_every_token_is_the_samplers(
    folder: Path, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any mix of parameters, prompts in chunks, shared prefixes and a preemption, at any depth: the ids that torch
    and the standard sampler give.  With two steps in flight ids go from one to the next on the device alone."""
    monkeypatch.setattr(standard, "AHEAD_S", 1.0015)  # one token
    settings = {depth: engine_config(folder, 16, use="prefix", depth=depth) for depth in get_args(Depth)}
    expected = play(TorchExecutor(None, settings[1]), settings[1])
    assert all(expected)
    for depth, config in settings.items():
        device = DeferredDevice()
        assert play(DeferredExecutor(Options(graphs=graphs), config, device), config) == expected
        assert device.most_waiting == (1 if depth == 1 else 2)
        assert "sample" in device.log and "ban_tokens" in device.log
        assert ("take_drawn" in device.log) == (depth != 1)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("sampler", OTHERS)
def test_other_samplers_are_asked(folder: Path, depth: Literal[1, 2], sampler: str) -> None:
    config = engine_config(folder, 16, use="prefix", depth=depth)
    expected = play(TorchExecutor(None, config), config, sampler)
    device = DeferredDevice()
    assert play(DeferredExecutor(None, config, device), config, sampler) == expected
    assert "sample" not in device.log


def test_whose_draw_the_kernel_takes_over() -> None:
    class Other(StandardSampler):
        order = (TopP(),)

    standard, other, second = (kind(None, SamplerContext(10)) for kind in (StandardSampler, Other, Second))
    row = GrantedRow("a", 0, 1, (3,), True, (0,), (0,))
    started = Started("a", (3,), 1, 0, SamplingParams())
    plans = []
    for sampler in (standard, other, second):
        (launch,) = sampler.handle(StepGrant(0, (row,), (started,)), 0.0)
        assert isinstance(launch, StepLaunch)
        plans.append(launch.sampling)
    assert can_draw(plans[0], standard.run)
    assert not can_draw(plans[0], StandardSampler(None, SamplerContext(10)).run)  # of another engine
    assert not can_draw(plans[0], second.run)
    assert not can_draw(plans[1], other.run)
    assert not can_draw(plans[2], second.run)
    assert not can_draw(object(), standard.run)
    assert not can_draw(None, standard.run)


@torch.inference_mode()
def test_rows_that_cannot_be_drawn_from_are_named() -> None:
    """With the sampler's words, and the others' ids."""
    sampler = StandardSampler(None, SamplerContext(70))
    logits = torch.zeros(4, 70)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 9] = 2
    plan = SamplingPlan(
        np.zeros(4, np.float32), np.zeros(4, np.int32), np.ones(4, np.float32), np.zeros(4, np.float32),
        np.zeros(4), np.ones(4, bool), np.array([3, 0]), np.array([9, 3]), sampler.run,
    )  # fmt: skip
    draws = Draws(EmulatedDevice())
    draws.reserve(4)
    draws.bring(plan, [])
    ids, failed = draws.draw(logits.clone()).read()
    expected = sampler.run(logits.clone(), plan)
    assert failed == expected.failed
    assert [row for row, _ in failed] == [0, 1, 2]
    assert ids[3] == expected.token_ids[3] == 0


def test_more_banned_ids_than_there_is_room_for() -> None:
    sampler = StandardSampler(None, SamplerContext(70))
    rows, ids = np.zeros(60, np.int64), np.arange(60, dtype=np.int64)
    plan = SamplingPlan(
        np.zeros(1, np.float32), np.zeros(1, np.int32), np.ones(1, np.float32), np.zeros(1, np.float32), np.zeros(1),
        np.ones(1, bool), rows, ids, sampler.run,
    )  # fmt: skip
    draws = Draws(EmulatedDevice())
    draws.reserve(1)
    draws.bring(plan, [])
    assert draws.draw(torch.zeros(1, 70)).read() == ([60], [])


@torch.inference_mode()
def test_what_is_on_its_way_is_not_overwritten() -> None:
    """Two uploads behind each other, nothing waited for: the third waits for the first."""
    device = DeferredDevice()
    staging = Staging(device)
    staging.reserve(4, 1)
    seen: list[list[int]] = []
    with device.step():
        for step in range(5):
            (there,) = staging.upload([np.full(4, step, np.int32)])
            device.append(lambda there=there: seen.append(there.tolist()))  # type: ignore[misc]
            assert len(seen) == max(0, step - 2)
    device.synchronize()
    assert seen == [[step] * 4 for step in range(5)]


@pytest.mark.slow
def test_a_request_that_ends_while_its_row_runs_leaves_nothing_behind(folder: Path) -> None:
    config = engine_config(folder, 16, depth=2)
    executor = DeferredExecutor(None, config, DeferredDevice())
    cancelled_amid(executor, config)
    assert len(executor._last_ids) <= 1  # of the request that ended last, until the next step says so
    assert "a" not in executor._last_ids
    executor.close()


def test_before_load(folder: Path) -> None:
    with pytest.raises(EngineFault, match=r"before load\(\)"):
        CupyExecutor(None, engine_config(folder, 16)).execute(StepLaunch(0, (), None), lambda *_: SampleOutput([], []))
