"""The loop that commands run on."""

from __future__ import annotations

import asyncio
import sys

import pytest

from mainspring.plugins.event_loop import run, runner


async def kind() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_uvloop_where_it_is_installed_and_asyncio_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop")
    assert run(kind()) == "uvloop"
    with runner() as made:
        assert made.run(kind()) == made.run(kind()) == "uvloop"
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(kind()).startswith("asyncio")
