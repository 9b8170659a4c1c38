"""Plugins at start and stop: the order of their calls, and what one that raises does to the others (F-07, F-08)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import permutations
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs

from mainspring.core.hookspecs import hookimpl
from mainspring.core.registry import Registry
from mainspring.plugins.config_file import load
from mainspring.plugins.engine import Engine
from mainspring.plugins.testing.fake_executor import FakeExecutor
from mainspring.plugins.text.edge import TextEdge
from mainspring.plugins.text.tokenizer import TextModel

from ..text.vocabularies import FACTS, byte_level

pytestmark = pytest.mark.anyio
QUIET = ["journal.path=", "sampler.use=scripted"]
PLACES = ("first", "plain", "last")


class Plugin:
    """Gets its hooks from ``plugin``."""


def plugin(said: list[str], name: str, fails: tuple[str, ...] = (), place: str = "plain") -> object:
    """Says ``start`` and ``stop``, a wrapper ``started`` and ``stopped`` too; raises where it ``fails``."""

    def say(what: str) -> None:
        said.append(f"{name} {what}")
        if what in fails:
            raise ValueError("on purpose")

    def on_start(kernel: Any) -> None:
        say("start")

    def on_stop(reason: str) -> None:
        say("stop")

    def around_start(kernel: Any) -> Generator[None, Any, Any]:
        say("start")
        result = yield
        say("started")
        return result

    def around_stop(reason: str) -> Generator[None, Any, Any]:
        say("stop")
        result = yield
        say("stopped")
        return result

    wrapper, made = "wrapper" in name, Plugin()
    for hook, function in (
        ("on_start", around_start if wrapper else on_start),
        ("on_stop", around_stop if wrapper else on_stop),
    ):
        marked: Any = function
        setattr(made, hook, hookimpl(marked, wrapper=wrapper, tryfirst=place == "first", trylast=place == "last"))
    return made


def test_the_order_is_that_of_the_categories_whoever_registered_first_f07() -> None:
    """Wrappers surround all others; among wrappers and among others: first, plain, last."""
    kinds = [(f"{place} {kind}", place) for kind in ("wrapper", "hook") for place in PLACES]
    hooks = ["first hook start", "plain hook start", "last hook start"]
    before = ["first wrapper start", "plain wrapper start", "last wrapper start"]
    after = ["last wrapper started", "plain wrapper started", "first wrapper started"]
    orders = list(permutations(kinds))
    for order in [orders[0], *Random(7).sample(orders, 40), orders[-1]]:
        said: list[str] = []
        registry = Registry()
        for name, place in order:
            registry.add(plugin(said, name, place=place), name)
        registry.manager.hook.on_start(kernel=None)
        assert said == before + hooks + after


def test_within_a_category_the_latest_comes_first_f07() -> None:
    said: list[str] = []
    registry = Registry()
    for name in ("one", "two", "three"):
        registry.add(plugin(said, name), name)
    registry.manager.hook.on_start(kernel=None)
    assert said == ["three start", "two start", "one start"]


@pytest.mark.parametrize("fails", ["stop", "stopped"])
async def test_a_wrapper_that_raises_at_the_stop_keeps_nobody_from_cleaning_up_f08(
    fails: str, make: Callable[[Registry], Engine]
) -> None:
    said: list[str] = []
    registry = Registry()
    for name, broken in (("outer wrapper", ()), ("inner wrapper", (fails,)), ("hook", ())):
        registry.add(plugin(said, name, broken), name)
    with capture_logs() as lines:
        async with make(registry):
            said.clear()
    assert {"outer wrapper stop", "outer wrapper stopped", "inner wrapper stop", "hook stop"} <= set(said)
    assert [line["plugin"] for line in lines if line["event"] == "on_stop_failed"] != []


@pytest.mark.parametrize(
    ("which", "fails"),
    [
        ("hook", "start"),
        *((f"{place} wrapper", moment) for place in ("outer", "inner") for moment in ("start", "started")),
    ],
)
async def test_one_that_raises_at_the_start_is_named_and_all_clean_up_f08(
    which: str, fails: str, make: Callable[[Registry], Engine]
) -> None:
    """The engine does not start half; what has started is told of the end."""
    said: list[str] = []
    registry = Registry()
    for name in ("outer wrapper", "inner wrapper", "hook"):
        registry.add(plugin(said, name, (fails,) if name == which else ()), name)
    with capture_logs(), pytest.raises(ValueError, match="on purpose"):
        async with make(registry):
            raise AssertionError("it started")
    assert {"outer wrapper stop", "inner wrapper stop", "hook stop"} <= set(said)


@pytest.fixture
def make() -> Callable[[Registry], Engine]:
    def engine(registry: Registry) -> Engine:
        config = load(None, QUIET).config
        text = TextEdge(config, TextModel(byte_level(), FACTS))
        return Engine(config, make_executor=lambda: FakeExecutor(64, 16, vocab_size=300), registry=registry, text=text)

    return engine
