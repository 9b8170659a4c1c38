"""A shadow policy is asked at every step, never obeyed, and its divergences are told."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from tests.support import submit

from mainspring.core.config import AllocatorConfig
from mainspring.core.messages import Note, StepPlan, Submit, Swap
from mainspring.core.policy import Decision, SchedulerPolicy
from mainspring.core.registry import Registry
from mainspring.plugins.settings import Config, SchedulerConfig, ShadowConfig
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.testing.fake_executor import FakeExecutor

POLICIES = sorted(info.name for info in Registry().available("scheduler"))


def play(
    use: str, shadow: ShadowConfig, requests: list[tuple[float, Submit]], instead: type[SchedulerPolicy] | None = None
) -> tuple[list[Any], Any]:
    """Everything that was said, and the host.  ``instead`` is put in the place of the shadow's policy."""
    log: list[Any] = []
    config = Config(
        paranoid=True,
        scheduler=SchedulerConfig(use=use, token_budget=24, max_running=4, shadow=shadow),
        allocator=AllocatorConfig(block_size=4),
    )
    executor = FakeExecutor(num_blocks=48, block_size=4)
    sim = Simulator(config, executor, lambda launch: 1.0, taps=[lambda message, now: log.append(message)])
    host: Any = sim.actors.host
    if instead is not None:
        host.shadow.planner.guard._use(instead(None, host.shadow.planner.guard.policy.context), "broken")
    for at in sorted({at for at, _ in requests}):
        sim.at(at, *(one for when, one in requests if when == at))
    sim.run()
    return log, host


def traffic(seed: int = 3) -> list[tuple[float, Submit]]:
    random = Random(seed)
    out = []
    for number in range(40):
        prompt = random.choice((3, 7, 20, 60))
        more: dict[str, Any] = {"tenant": random.choice("ab"), "priority": random.randrange(3)}
        out.append((random.random() * 60, submit(f"r{number}", prompt, random.choice((2, 9, 20)), **more)))
    return sorted(out, key=lambda pair: pair[0])


def divergences(log: list[Any]) -> list[dict[str, Any]]:
    return [one.facts for one in log if isinstance(one, Note) and one.point == "scheduler.shadow"]


def said(log: list[Any]) -> list[Any]:
    return [one for one in log if not isinstance(one, Note)]


@pytest.mark.parametrize("use", POLICIES)
def test_a_policy_never_diverges_from_itself(use: str) -> None:
    """With preemptions and sharing; every narrow hook and full pass sees the real state as the real one does."""
    alone, _ = play(use, ShadowConfig(), traffic())
    log, host = play(use, ShadowConfig(use=use), traffic())
    assert said(log) == said(alone)
    assert divergences(log) == []
    stats = host.stats()
    assert stats["shadow_steps"] > 20 and stats["shadow_diverged"] == stats["shadow_faults"] == 0


def test_another_policy_is_asked_and_not_obeyed() -> None:
    """The long one came first: fcfs serves it, shortest would not have."""
    requests = [(0.0, submit("long", 60, 4)), (0.0, submit("short", 5, 4))]
    alone, _ = play("fcfs", ShadowConfig(), requests)
    log, host = play("fcfs", ShadowConfig(use="shortest"), requests)
    assert said(log) == said(alone)
    first = divergences(log)[0]
    assert first["policy"] == "shortest" and first["step"] == 1
    assert first["only_shadow"] == ["short"] and first["tokens"] == [["long", 24, 19]]
    plan = next(one for one in log if isinstance(one, StepPlan))
    assert [(row.rid, row.count) for row in plan.rows] == [("long", 24)]
    assert host.stats()["shadow_diverged"] == len(divergences(log)) > 0


def test_a_shadow_that_only_orders_otherwise_is_told_as_reordered() -> None:
    requests = [(0.0, submit("a", 8, 2)), (0.0, submit("b", (90, 91, 92, 93, 94), 2))]
    log, _ = play("fcfs", ShadowConfig(use="shortest"), requests)
    assert divergences(log)[0] == {"policy": "shortest", "step": 1, "reordered": True}


def raises(*arguments: Any) -> Any:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("schedule", [raises, lambda self, view: Decision([([], 1)])])  # type: ignore[list-item]
def test_a_broken_shadow_disturbs_nobody(schedule: Any) -> None:
    alone, _ = play("fcfs", ShadowConfig(), traffic())
    hooks = {"admit": raises, "waiting_key": raises, "on_event": raises, "schedule": schedule}
    broken = type("Broken", (SchedulerPolicy,), hooks)
    log, host = play("fcfs", ShadowConfig(use="fcfs"), traffic(), broken)
    assert said(log) == said(alone)
    assert host.stats()["shadow_faults"] > 20


def test_a_swap_brings_a_shadow_in_and_takes_it_out() -> None:
    config = Config(scheduler=SchedulerConfig(token_budget=24, max_running=4), allocator=AllocatorConfig(block_size=4))
    log: list[Any] = []
    sim = Simulator(
        config, FakeExecutor(num_blocks=64, block_size=4), lambda launch: 1.0, taps=[lambda m, now: log.append(m)]
    )
    for at, one in traffic():
        sim.at(at, one)
    shadowed = msgspec.structs.replace(config.scheduler, shadow=ShadowConfig(use="shortest"))
    sim.at(20.5, Swap(shadowed))
    sim.at(40.5, Swap(config.scheduler))
    sim.run()
    host: Any = sim.actors.host
    assert host.shadow is None
    steps = [facts["step"] for facts in divergences(log)]
    assert steps and min(steps) > 15 and max(steps) < 45
    assert len([one for one in log if isinstance(one, Note) and one.point == "scheduler.swapped"]) == 2


def test_a_shadow_is_asked_for_admission_in_the_state_that_the_real_policy_saw() -> None:
    seen: dict[str, list[int]] = {"real": [], "shadow": []}

    def policy(name: str) -> type[SchedulerPolicy]:
        def admit(self: Any, request: Any, view: Any) -> None:
            seen[name].append(len(view.waiting))

        return type(name, (SchedulerPolicy,), {"admit": admit})

    config = Config(
        scheduler=SchedulerConfig(token_budget=24, max_running=1, shadow=ShadowConfig(use="fcfs")),
        allocator=AllocatorConfig(block_size=4),
    )
    sim = Simulator(config, FakeExecutor(num_blocks=48, block_size=4), lambda launch: 1.0)
    host: Any = sim.actors.host
    for name, guard in (("real", host.planner.guard), ("shadow", host.shadow.planner.guard)):
        guard._use(policy(name)(None, guard.policy.context), name)
    sim.at(0.0, *(submit(f"r{number}", 5, 2) for number in range(3)))
    sim.run()
    assert len(seen["real"]) == 3 and seen["shadow"] == seen["real"]
