"""Experiments on the traffic of a running engine: shadow, switchback and replicas, without a model."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.test_drain import SlowModel
from tests.experiments.lab import record

from mainspring.core.config import SamplerConfig
from mainspring.core.errors import ConfigError
from mainspring.core.messages import Down, Message, Submit
from mainspring.core.policy import Executor
from mainspring.plugins.engine import Engine
from mainspring.plugins.experiments.report import Report
from mainspring.plugins.experiments.served.replicas import SplitEngine, bucket
from mainspring.plugins.experiments.served.start import Served, start
from mainspring.plugins.experiments.served.switchback import Switchback
from mainspring.plugins.settings import Config, JournalConfig, SchedulerConfig
from mainspring.plugins.testing.fake_executor import FakeExecutor, expected_ids
from mainspring.plugins.text.edge import TextEdge

TWO = '[arms.fcfs.scheduler]\nuse = "fcfs"\n[arms.other.scheduler]\n'


def write(folder: Path, live: str, arms: str = TWO + 'use = "shortest"\n') -> Path:
    path = folder / "served.toml"
    path.write_text(
        f'name = "served"\nbaseline = "fcfs"\nprimary = "ttft_mean"\nwarmup = 0.0\n[live]\n{live}\n{arms}',
        encoding="utf-8",
    )
    return path


def config(**scheduler: Any) -> Config:
    return Config(
        scheduler=SchedulerConfig(**{"token_budget": 32, "max_running": 2} | scheduler),
        sampler=SamplerConfig(use="scripted"),
        journal=JournalConfig(path=""),
    )


def begin(
    folder: Path,
    live: str,
    arms: str = TWO + 'use = "shortest"\n',
    step_s: float = 0.002,
    text: TextEdge | None = None,
) -> Served:
    def make(settings: Config) -> Executor:
        return FakeExecutor(256, settings.allocator.block_size, 49_152, step_s=step_s, now=time.monotonic)

    path = write(folder, live, arms)
    return start(path, config(), folder / "out", gateways=False, make_executor=make, text=text)


async def ask(engine: Engine, number: int, prompt: int = 8, output: int = 4, tenant: str = "default") -> Any:
    ids = [20 + (number * 7 + at) % 1000 for at in range(prompt)]
    result = await engine.generate(
        {"token_ids": ids, "max_tokens": output, "temperature": 0, "ignore_eos": True, "tenant": tenant}
    )
    return ids, result


async def fail(engine: Engine) -> None:
    """The executor fails and is built again."""
    before = engine.kernel.actors
    engine.kernel.post(Down("executor", "on purpose"))
    while engine.kernel.actors in (None, before):
        await asyncio.sleep(0.01)


# --- shadow ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shadow_logs_divergences_and_applies_nothing(tmp_path: Path) -> None:
    served = begin(tmp_path, 'mode = "shadow"')
    order: list[str] = []

    async def traffic() -> list[Any]:
        async with served.engine as engine:
            engine.kernel.router._taps += (
                lambda message, now: order.append(message.rid) if isinstance(message, Submit) else None,
            )
            lengths = [200, 8, 120, 8, 60, 8, 30, 8]
            return await asyncio.gather(*(ask(engine, number, length) for number, length in enumerate(lengths)))

    results = asyncio.run(traffic())
    for ids, result in results:
        assert list(result.token_ids) == expected_ids(tuple(ids), 4, 49_152)
    told = served.finish()
    summary = json.loads((tmp_path / "out" / "shadow.json").read_text())
    lines = (tmp_path / "out" / "divergences.jsonl").read_text().splitlines()
    assert 0 < summary["diverged"] == len(lines) < summary["steps"]
    assert summary["faults"] == 0 and f"differed in {len(lines)} of {summary['steps']} steps" in told
    first = json.loads(lines[0])
    assert first["policy"] == "shortest" and first.keys() & {"only_real", "only_shadow", "tokens"}


def test_a_full_disk_costs_the_files_and_no_request(tmp_path: Path) -> None:
    """``/dev/full`` takes nothing; what the terminal shows is there all the same."""
    served = begin(tmp_path, 'mode = "shadow"')
    for name in ("divergences.jsonl", "shadow.json"):
        (tmp_path / "out" / name).symlink_to("/dev/full")
    assert served.shadow is not None
    served.shadow.buffer_bytes = 0

    async def traffic() -> list[Any]:
        async with served.engine as engine:
            lengths = [200, 8, 120, 8, 60, 8, 30, 8]
            return await asyncio.gather(*(ask(engine, number, length) for number, length in enumerate(lengths)))

    assert [len(result.token_ids) for _, result in asyncio.run(traffic())] == [4] * 8
    told = served.finish()
    assert "shadow: differed in" in told and "cannot be written: No space left on device" in told
    assert served.shadow.summary()["diverged"] > 1


@pytest.mark.parametrize(
    ("arms", "words"),
    [
        (TWO + "token_budget = 16\n", "scheduler.token_budget: a shadow shares the engine"),
        (TWO + 'use = "fair"\n[arms.third]\n', "a shadow experiment has two, this one has 3"),
        (TWO + 'use = "fair"\n[arms.other.request]\ntop_k = 1\n', "the requests of a server are its clients'"),
    ],
)
def test_what_a_shadow_cannot_do_is_refused(arms: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"served\.toml") as refused:
        begin(tmp_path, 'mode = "shadow"', arms)
    assert words in str(refused.value)


def test_what_a_shadow_was_asked_outlives_a_rebuild(tmp_path: Path) -> None:
    served = begin(tmp_path, 'mode = "shadow"')
    assert served.shadow is not None

    async def traffic() -> int:
        async with served.engine as engine:
            await asyncio.gather(*(ask(engine, number, 8 + number) for number in range(4)))
            asked = int(engine.kernel.stats()["shadow_steps"])
            await fail(engine)
            await asyncio.gather(*(ask(engine, number, 8 + number) for number in range(4)))
            return asked + int(engine.kernel.stats()["shadow_steps"])

    asked = asyncio.run(traffic())
    summary = served.shadow.summary()
    assert summary["steps"] >= asked > 10


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    class Broken(FakeExecutor):
        def load(self, progress: Any) -> Any:
            raise RuntimeError("no weights")

    def start_it(folder: Path) -> Served:
        path = write(folder, 'mode = "shadow"')
        return start(path, config(), folder / "out", gateways=False, make_executor=lambda _: Broken())

    async def serving(served: Served) -> None:
        async with served.engine:
            raise AssertionError("it cannot serve")

    served = start_it(tmp_path)
    with pytest.raises(RuntimeError, match="no weights"):
        asyncio.run(serving(served))
    assert served.shadow is not None and served.shadow._file is None
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "out").symlink_to(tmp_path / "not" / "there")
    with pytest.raises(ConfigError, match=r"--experiment-out .*: cannot be written"):
        start_it(tmp_path / "two")


# --- switchback ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_switchback_takes_turns_and_drops_what_spans_a_boundary(tmp_path: Path) -> None:
    """The other arm runs one request at a time instead of two, which its windows show; one request spans windows."""
    arms = TWO + 'use = "fcfs"\nmax_running = 1\n'
    served = begin(tmp_path, 'mode = "switchback"\nwindow_s = 0.5', arms)
    assert served.book is not None
    arms_in_force: Counter[int] = Counter()

    async def traffic() -> str:
        async with served.engine as engine:
            edge = next(one for one in engine.kernel.edges if isinstance(one, Switchback))
            spanning = asyncio.create_task(ask(engine, 0, output=200))
            asked: list[asyncio.Task[Any]] = []
            while len(served.book.pairs if served.book else ()) < 5:
                asked.append(asyncio.create_task(ask(engine, len(asked) + 1)))
                arms_in_force[engine.kernel.actors.host.config.max_running] += 1  # type: ignore[union-attr]
                assert edge._now is not None
                await asyncio.sleep(0.02)
            await asyncio.gather(spanning, *asked)
        return await served.stopped()

    told = asyncio.run(traffic())
    report = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes(), type=Report)
    level = report.levels[0]
    assert arms_in_force.keys() == {1, 2} and min(arms_in_force.values()) > 10
    assert level.pairs >= 5 and level.arms[0].checks == ()
    assert sum(served.book.spanning.values()) >= 1
    assert "span a boundary of windows and are dropped" in level.cautions[0] and "span a boundary" in told
    assert level.arms[0].effects[0].change is not None
    assert "live traffic" in (tmp_path / "out" / "report.html").read_text()


def test_switchback_keeps_only_what_lies_in_one_window(tmp_path: Path) -> None:
    """The book, without an engine: two in their window, one over the boundary, one that its client cancelled."""
    served = begin(tmp_path, 'mode = "switchback"\nwindow_s = 60')
    edge = next(one for one in served.engine.kernel.edges if isinstance(one, Switchback))
    for place, rids in (((0, 1, "fcfs"), ("a", "b", "c", "d")), ((0, 2, "other"), ("e", "f"))):
        edge._now = place
        for rid in rids:
            edge._came(rid, 0.0)
        for rid in rids:
            if rid != "c":
                edge._ended(record(rid, reason="cancelled" if rid == "d" else "length"), 1.0)
    edge._ended(record("c"), 2.0)
    assert edge.book.spanning == {"fcfs": 1} and edge.book.cancelled == {"fcfs": 1}
    assert edge.book.pairs == []
    edge.book.close(0)
    assert edge.book.pairs == [0] and edge.book.num_kept == 4


def test_after_a_rebuild_no_arm_is_in_force_until_the_next_turn(tmp_path: Path) -> None:
    """What came before the failure and failed with it still counts for its arm."""
    served = begin(tmp_path, 'mode = "switchback"\nwindow_s = 60')

    async def traffic() -> tuple[Any, Any]:
        async with served.engine as engine:
            edge = next(one for one in engine.kernel.edges if isinstance(one, Switchback))
            while edge._now is None:
                await asyncio.sleep(0.01)
            flying = asyncio.create_task(ask(engine, 0, output=2000))
            while not edge._where:
                await asyncio.sleep(0.01)
            await fail(engine)
            (_, failed), (_, after) = await flying, await ask(engine, 1)
            return failed, after

    failed, after = asyncio.run(traffic())
    assert failed.error is not None and after.error is None
    assert served.book is not None and served.book.num_kept == 1
    assert [one.reason for some in served.book._records.values() for one in some] == ["error"]


def test_what_cannot_change_while_running_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'allocator\.block_size: cannot change while running; use live\.mode = "rep'):
        begin(tmp_path, 'mode = "switchback"', TWO + "[arms.other.allocator]\nblock_size = 32\n")


# --- replicas --------------------------------------------------------------------------------------------------------


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
