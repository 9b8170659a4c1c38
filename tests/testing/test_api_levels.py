"""Plugins written for a supported API level keep working; those of another level are refused by name (F-05)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mainspring.core.config import AllocatorConfig, Config, Depth, SchedulerConfig
from mainspring.core.errors import ClientError, PluginError
from mainspring.core.messages import GrantedRow, SamplingParams, StepGrant, StepLaunch
from mainspring.core.policy import API_LEVELS, SamplerContext
from mainspring.core.registry import Registry
from mainspring.testing import FakeExecutor, Simulator, Trial, disturbed, expected_ids, mix

FROZEN = Path(__file__).parents[1] / "frozen"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FROZEN)


def test_every_supported_level_has_a_frozen_plugin_of_each_kind() -> None:
    for level in API_LEVELS:
        files = {file.name for file in (FROZEN / f"level{level}").glob("*.py")}
        assert files == {"scheduler.py", "allocator.py", "sampler.py"}


@pytest.mark.slow
def test_the_frozen_scheduler_keeps_the_laws() -> None:
    with Trial("level1.scheduler:Frozen", {"stride": 2}, profile="fast") as trial:
        assert trial.broken() == {}


@pytest.mark.parametrize("depth", [1, 2, "auto"])
def test_the_frozen_allocator_carries_an_engine(depth: Depth) -> None:
    """Tiny pool, cancels and pauses: every request gets its own text and all blocks come back."""
    config = Config(
        paranoid=True,
        scheduler=SchedulerConfig(token_budget=16, max_running=6, depth=depth),
        allocator=AllocatorConfig(use="level1.allocator:Frozen", block_size=4),
    )
    simulator = Simulator(config, FakeExecutor(16, 4, max_context=60))
    requests = mix(21, 30, prompts=20)
    for moment, message in disturbed(22, requests):
        simulator.at(moment, message)
    simulator.run(max_events=5000)
    out: dict[str, list[int]] = {}
    for emit in simulator.emitted:
        for row in emit.rows:
            out.setdefault(row.rid, []).extend(row.token_ids)
    assert len(out) == 30
    for _, request in requests:
        assert out[request.rid] == expected_ids(request.prompt_ids, len(out[request.rid]))
    assert simulator.actors.allocator.free_blocks == 16


def test_the_frozen_sampler_plans_and_draws() -> None:
    sampler: Any = Registry().make("sampler", "level1.sampler:Frozen", {}, SamplerContext(10, (0,)))
    row = GrantedRow("a", 0, 2, (4, 5), True, (0,), (0, 1))
    (launch,) = sampler.handle(StepGrant(1, (row,)), 0.0)
    assert isinstance(launch, StepLaunch)
    assert launch.sampling == ["a"]
    assert sampler.run(np.arange(20.0).reshape(2, 10), launch.sampling).token_ids == [8, 8]
    sampler.check()
    with pytest.raises(ClientError, match="temperature"):
        sampler.validate(SamplingParams(temperature=-1.0))


@pytest.mark.parametrize("kind", ["scheduler", "allocator", "sampler"])
@pytest.mark.parametrize("level", [0, 2, None, "1"])
def test_another_level_is_refused_naming_plugin_and_levels(
    kind: str, level: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    module = importlib.import_module(f"level1.{kind}")
    monkeypatch.setattr(module.Frozen, "api_level", level)
    with pytest.raises(PluginError) as caught:
        Registry().resolve(kind, f"level1.{kind}:Frozen")
    said = str(caught.value)
    assert f"{kind} 'level1.{kind}:Frozen'" in said
    assert f"api_level {level!r}" in said
    assert str(sorted(API_LEVELS)) in said
