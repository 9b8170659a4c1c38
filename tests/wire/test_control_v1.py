"""The operator's protocol byte by byte, on a real kernel with a fake executor."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from mainspring.core.clock import MonotonicClock
from mainspring.core.config import AllocatorConfig, SamplerConfig, check_options
from mainspring.core.kernel import Kernel
from mainspring.core.messages import SamplingParams, Submit
from mainspring.core.registry import Registry
from mainspring.plugins.control import Control
from mainspring.plugins.executors.thread import ExecutorThread
from mainspring.plugins.journal import Journal
from mainspring.plugins.settings import Config, SchedulerConfig
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.wire.control_v1 import ControlSession

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def operator(reread: Config | None = None) -> AsyncIterator[tuple[ControlSession, Kernel]]:
    config = Config(
        scheduler=SchedulerConfig(token_budget=8),
        allocator=AllocatorConfig(use="paged", block_size=4),
        sampler=SamplerConfig(use="scripted"),
    )
    registry, journal = Registry(), Journal(1000)

    def check(wanted: Config) -> None:
        info = registry.resolve("scheduler", wanted.scheduler.use)
        check_options(wanted.scheduler.options, info.options, "scheduler.options", "swap")

    control = Control(config, check)
    kernel = Kernel(
        config,
        registry,
        MonotonicClock(),
        lambda kernel: ExecutorThread(FakeExecutor(64, 4), kernel.post_threadsafe, kernel.now),
        [control],
        [journal.record],
    )
    with anyio.fail_after(60):
        async with kernel.running():
            yield ControlSession(control, journal, (lambda: reread) if reread else None), kernel


def ask(session: ControlSession, **frame: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(session.receive(json.dumps(frame)))
    return answer


async def test_swap_and_status() -> None:
    async with operator() as (session, _):
        answer = ask(session, type="swap", id=7, scheduler={"use": "token_budget", "token_budget": 16})
        assert (answer["type"], answer["old"], answer["new"], answer["id"]) == ("swapped", "fcfs", "token_budget", 7)
        status = ask(session, type="status")
        assert status["scheduler"]["token_budget"] == 16
        assert status["stats"]["running"] == 0


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        ({"type": "swap", "scheduler": {"use": "fcfz"}}, "invalid_request", "did you mean 'fcfs'"),
        ({"type": "swap", "scheduler": {"tokn_budget": 3}}, "invalid_request", "did you mean 'token_budget'"),
        ({"type": "swap", "scheduler": {"token_budget": 0}}, "invalid_request", ">= 1"),
        ({"type": "swap", "scheduler": {"depth": "atuo"}}, "invalid_request", "did you mean 'auto'"),
        ({"type": "swap", "scheduler": {"options": {"x": 1}}}, "invalid_request", "scheduler.options.x"),
        ({"type": "swap", "scheduler": 3}, "invalid_request", "an object"),
        ({"type": "swap"}, "invalid_request", "scheduler is missing"),
        ({"type": "swpa", "scheduler": {}}, "unknown_event", "did you mean 'swap'"),
        ({"type": "status", "verbose": 1}, "unsupported_parameter", "verbose"),
        ({"type": "reload"}, "invalid_request", "configuration file"),
        ({"type": 3}, "invalid_request", "string type"),
    ],
)
async def test_refusals_change_nothing(frame: dict[str, Any], code: str, words: str) -> None:
    async with operator() as (session, kernel):
        answer = ask(session, **frame)
        assert (answer["type"], answer["code"]) == ("error", code)
        assert words in answer["message"]
        assert ask(session, type="status")["scheduler"]["use"] == "fcfs"
        assert kernel.ready


async def test_not_json() -> None:
    async with operator() as (session, _):
        assert json.loads(session.receive("{"))["code"] == "invalid_json"


async def test_reload_refuses_what_needs_a_restart() -> None:
    changed = Config(scheduler=SchedulerConfig(use="fair"), allocator=AllocatorConfig(use="paged", block_size=32))
    async with operator(changed) as (session, _):
        answer = ask(session, type="reload")
        assert "allocator.block_size" in answer["message"]
        assert "restart" in answer["message"]


async def test_hold_release_and_story() -> None:
    async with operator() as (session, kernel):
        assert ask(session, type="hold")["type"] == "ok"
        kernel.post(Submit("A", (5, 6, 7), SamplingParams(max_tokens=2, ignore_eos=True)))
        assert ask(session, type="status")["stats"]["waiting"] == 1
        ask(session, type="release")
        while kernel.stats().get("finished_length") != 1:
            await anyio.sleep(0.002)
        story = ask(session, type="story", rid="A")
        kinds = [entry["type"] for entry in story["entries"]]
        assert kinds[0] == "Submit"
        assert {"StepPlan", "StepGrant", "StepResult", "Emit"} <= set(kinds)
        assert msgspec.json.encode(story)
