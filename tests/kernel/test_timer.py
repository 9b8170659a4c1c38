"""Timers on the engine's clock, whatever the loop's own does."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.core.edge import Timer

pytestmark = pytest.mark.anyio


async def test_one_that_the_loop_fires_early_waits_for_the_clock() -> None:
    now, called = 5.0, list[str]()
    Timer(5.002, lambda: now, called.append, "a")
    await asyncio.sleep(0.02)
    assert called == []
    now = 5.002
    await asyncio.sleep(0.02)
    assert called == ["a"]


async def test_a_moment_that_has_passed_and_one_that_is_cancelled() -> None:
    called = list[str]()
    Timer(1.0, lambda: 5.0, called.append, "late")
    Timer(5.01, lambda: 5.0, called.append, "never").cancel()
    stuck = Timer(5.001, lambda: 5.0, called.append, "never")
    await asyncio.sleep(0.02)
    stuck.cancel()  # after it has been set again
    await asyncio.sleep(0.02)
    assert called == ["late"]
