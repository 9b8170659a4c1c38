"""Replicas: two kernels share the traffic of one gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.test_drain import SlowModel
from tests.experiments.served import TWO, ask, begin, config, write

from mainspring.core.errors import ConfigError
from mainspring.core.messages import Down, Message, Submit
from mainspring.plugins.experiments.report import Report
from mainspring.plugins.experiments.served.replicas import SplitEngine, bucket
from mainspring.plugins.experiments.served.start import start
from mainspring.plugins.settings import JournalConfig
from mainspring.plugins.testing.fake_executor import FakeExecutor, expected_ids
from mainspring.plugins.text.edge import TextEdge


def test_buckets_are_even_stable_and_belong_to_the_experiment() -> None:
    counts = Counter(bucket("one", f"r{number}", 2) for number in range(4000))
    assert abs(counts[0] - 2000) < 4 * (4000 * 0.25) ** 0.5
    assert [bucket("one", f"r{number}", 2) for number in range(8)] == [
        bucket("one", f"r{number}", 2) for number in range(8)
    ]
    same = sum(bucket("one", f"r{number}", 2) == bucket("two", f"r{number}", 2) for number in range(4000))
    assert abs(same - 2000) < 4 * (4000 * 0.25) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("key", ["request", "tenant"])
def test_replicas_serve_every_request_by_one_kernel_that_its_key_chose(key: str, tmp_path: Path) -> None:
    arms = TWO + 'use = "fair"\n[arms.other.allocator]\nblock_size = 32\n'
    served = begin(tmp_path, f'mode = "replicas"\nwindow_s = 0.2\nkey = "{key}"', arms)
    split = served.engine
    assert isinstance(split, SplitEngine) and served.book is not None
    seen: dict[str, list[Submit]] = {"fcfs": [], "other": []}
    for kernel, arm in ((split.kernel, "fcfs"), (split.second, "other")):

        def tap(message: Message, now: float, arm: str = arm) -> None:
            if isinstance(message, Submit):
                seen[arm].append(message)

        kernel.router._taps += (tap,)

    async def traffic() -> list[Any]:
        out: list[Any] = []
        async with split as engine:
            number = 0
            while len(served.book.pairs if served.book else ()) < 5:
                asked = (ask(engine, number + at, tenant=f"t{(number + at) % 9}") for at in range(6))
                out += await asyncio.gather(*asked)
                number += 6
            stats = engine.control.stats()
            assert stats["finished_length"] == len(out)
            with pytest.raises(ConfigError, match="its arms do not change"):
                engine.control.swap(engine.config.scheduler)
        await served.stopped()
        return out

    results = asyncio.run(traffic())
    for ids, result in results:
        assert list(result.token_ids) == expected_ids(tuple(ids), 4, 49_152)
    for place, arm in enumerate(seen):
        assert seen[arm], "both replicas serve"
        for submit in seen[arm]:
            assert submit.arm == arm
            assert bucket("served", submit.rid if key == "request" else submit.tenant, 2) == place
    report = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes(), type=Report)
    assert report.levels[0].pairs >= 5 and not served.book.spanning
    assert report.machine["mode"] == "replicas"


@pytest.mark.slow
def test_a_fork_and_a_cancel_find_their_replica(tmp_path: Path) -> None:
    served = begin(tmp_path, 'mode = "replicas"\nwindow_s = 5')
    split = served.engine
    assert isinstance(split, SplitEngine)

    async def traffic() -> Counter[str]:
        reasons: Counter[str] = Counter()
        async with split as engine:
            for number in range(6):
                stream = engine.stream(
                    {"token_ids": [30 + number] * 8, "max_tokens": 500, "temperature": 0, "ignore_eos": True}
                )
                first = await anext(stream)
                await anext(stream)
                fork = await engine.fork(first.rid, {"max_tokens": 3, "temperature": 0, "ignore_eos": True})
                reasons[str(fork.finish_reason)] += 1
                engine.text.cancel(first.rid)
                async for event in stream:
                    last = event
                reasons[str(last.finish.reason)] += 1  # type: ignore[union-attr]
        return reasons

    assert asyncio.run(traffic()) == {"length": 6, "cancelled": 6}


def test_both_replicas_take_what_was_being_encoded_when_the_drain_began(tmp_path: Path) -> None:
    """E-13: whichever kernel a prompt belongs to, it was taken before the signal."""
    model = SlowModel()
    served = begin(tmp_path, 'mode = "replicas"\nwindow_s = 5', text=TextEdge(config(), model))
    arms: Counter[str | None] = Counter()
    split = served.engine
    assert isinstance(split, SplitEngine)

    def tap(message: Message, now: float) -> None:
        if isinstance(message, Submit):
            arms[message.arm] += 1

    for kernel in (split.kernel, split.second):
        kernel.router._taps += (tap,)

    async def traffic() -> list[Any]:
        async with split as engine:
            request = {"prompt": "early", "max_tokens": 3, "ignore_eos": True}
            asked = [asyncio.create_task(engine.generate(request)) for _ in range(12)]
            await asyncio.to_thread(model.encoding.wait, 10)
            draining = asyncio.create_task(engine.drain())
            await asyncio.sleep(0.05)
            model.gate.set()
            results = await asyncio.gather(*asked)
            await draining
            return results

    try:
        results = asyncio.run(traffic())
    finally:
        model.gate.set()
    assert [(result.error, len(result.token_ids)) for result in results] == [(None, 3)] * 12
    assert arms.keys() == {"fcfs", "other"}


def test_both_replicas_are_recorded_and_rebuilt_within_a_limit(tmp_path: Path) -> None:
    """``journal.trace`` has the requests of both arms; a reload of the second kernel may not hang for good either."""
    traced = msgspec.structs.replace(config(), journal=JournalConfig(path="", trace=str(tmp_path / "trace")))
    made = lambda settings: FakeExecutor(256, settings.allocator.block_size, 49_152)  # noqa: E731
    path = write(tmp_path, 'mode = "replicas"\nwindow_s = 5')
    served = start(path, traced, tmp_path / "out", gateways=False, make_executor=made)
    split = served.engine
    assert isinstance(split, SplitEngine)

    async def traffic() -> tuple[float, Any]:
        async with split as engine:
            await asyncio.gather(*(ask(engine, number) for number in range(24)))
            served_by_second = split.second.stats()["finished_length"]
            before = split.second.actors
            split.second.post(Down("executor", "on purpose"))
            while split.second.actors in (None, before):
                await asyncio.sleep(0.01)
            return served_by_second, split.second._executor

    by_second, executor = asyncio.run(traffic())
    assert 0 < by_second < 24
    (file,) = (tmp_path / "trace").iterdir()
    assert len(file.read_text().splitlines()) == 1 + 24
    assert executor.load_limit_s == traced.executor.stall_s
