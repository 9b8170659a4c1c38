"""Switchback: the arms take turns on the traffic of a running engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.experiments.lab import record
from tests.experiments.served import TWO, ask, begin, fail

from mainspring.core.errors import ConfigError
from mainspring.plugins.experiments.report import Report
from mainspring.plugins.experiments.served.switchback import Switchback


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
