"""The heap driver and the asyncio driver under the same manual clock decide the same bytes, for every policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.simulation.virtual_loop import run_on_asyncio

from mainspring.core.config import AllocatorConfig, Config, Depth, SamplerConfig, SchedulerConfig
from mainspring.core.messages import Emit, Message, StepGrant, StepLaunch, StepPlan, Submit
from mainspring.core.registry import Registry
from mainspring.plugins.simulator import Simulator
from mainspring.plugins.step_time.features import features_of
from mainspring.plugins.step_time.forms import StepForm
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.testing.scenarios import mix

FORM = StepForm(form="max", c0=0.004, c1=0.0005, c2=0.0003, c3=1e-6, c4=1e-7, floor=0.003)
WRAPPERS = ({"use": "ageing", "max_wait_s": 0.4}, "tenant_share")
CASES: list[tuple[str, dict[str, Any]]] = [
    *((info.name, {"use": info.name}) for info in Registry().available("scheduler") if info.origin == "mainspring"),
    ("deadline, slack", {"use": "deadline", "options": {"order": "slack"}}),
    ("shortest, hrrn", {"use": "shortest", "options": {"mode": "hrrn"}}),
    ("fair, final, every 4th step", {"use": "fair", "options": {"admission": "final", "admit_every": 4}}),
    ("mlfq in ageing and shares", {"use": "mlfq", "wrap": WRAPPERS}),
]


def seconds(launch: StepLaunch) -> float:
    return FORM(features_of(launch.rows, launch.padding))


def arrivals() -> list[tuple[float, list[Submit]]]:
    """Requests, tenants, classes, deadlines that nobody misses, hidden lengths; a burst at one moment."""
    groups: dict[float, list[Submit]] = {}
    for index, (moment, submit) in enumerate(mix(4, 36, over_s=1.2)):
        deadline = moment + 50 + index if submit.deadline else None
        at = 0.6 if index % 4 == 0 else moment
        groups.setdefault(at, []).append(msgspec.structs.replace(submit, deadline=deadline))
    return sorted(groups.items())


class Log:
    """Decisions in order: plans, grants and what was emitted; moments in whole nanoseconds, wall times left out."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def tap(self, message: Message, now: float) -> None:
        if isinstance(message, StepPlan | StepGrant | Emit) and (message.step >= 0 or isinstance(message, Emit)):
            if isinstance(message, Emit):
                ended = [(row.rid, row.token_ids, row.finish and row.finish.reason) for row in message.rows]
                self.lines.append(msgspec.json.encode((round(now * 1e9), message.step, ended)))
            else:
                self.lines.append(msgspec.json.encode((round(now * 1e9), type(message).__name__, message)))

    def text(self) -> bytes:
        return b"\n".join(self.lines)


def config(scheduler: dict[str, Any], depth: Depth, allocator: str) -> Config:
    limits: dict[str, Any] = {"token_budget": 24, "max_running": 6, "depth": depth, **scheduler}
    return Config(
        scheduler=SchedulerConfig(**limits),
        allocator=AllocatorConfig(use=allocator, block_size=4),
        sampler=SamplerConfig(use="scripted"),
    )


def on_heap(settings: Config, groups: Sequence[tuple[float, Sequence[Submit]]]) -> Log:
    log = Log()
    simulator = Simulator(settings, FakeExecutor(30, 4), seconds, taps=[log.tap])
    for moment, submits in groups:
        simulator.at(moment, *submits)
    simulator.run()
    simulator.actors.check()
    return log


@pytest.mark.parametrize("depth", [1, 2, "auto"])
@pytest.mark.parametrize(("name", "scheduler"), CASES, ids=[name for name, _ in CASES])
def test_the_two_drivers_decide_the_same(name: str, scheduler: dict[str, Any], depth: Depth) -> None:
    settings, log = config(scheduler, depth, "prefix"), Log()
    run_on_asyncio(settings, FakeExecutor(30, 4), seconds, arrivals(), [log.tap])
    heap = on_heap(settings, arrivals())
    assert len(heap.lines) > 100
    assert heap.text() == log.text()


def test_the_log_would_show_a_difference() -> None:
    """Another policy, or the same requests in another order, gives another log."""
    first = on_heap(config({"use": "fcfs"}, 1, "prefix"), arrivals())
    assert first.text() == on_heap(config({"use": "fcfs"}, 1, "prefix"), arrivals()).text()
    assert first.text() != on_heap(config({"use": "shortest"}, 1, "prefix"), arrivals()).text()
    turned = [(moment, submits[::-1]) for moment, submits in arrivals()]
    assert first.text() != on_heap(config({"use": "fcfs"}, 1, "prefix"), turned).text()
