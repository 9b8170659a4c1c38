"""Three ways to put short work first, and least attained service."""

from __future__ import annotations

from types import SimpleNamespace

from tests.schedulers.test_priority import preempted, starts
from tests.support import config, lab, submit

from mainspring.core.config import SchedulerConfig
from mainspring.core.messages import Swap
from mainspring.core.policy import PolicyContext
from mainspring.schedulers.mlfq import Mlfq, Options


def test_shortest_prompt_first() -> None:
    it = lab(config(max_running=1, use="shortest"))
    it.sim.at(0.0, *(submit(f"n{size}", size, 1) for size in (23, 5, 17, 2)))
    it.sim.run()
    assert starts(it) == ["n2", "n5", "n17", "n23"]


def test_remaining_is_learned_from_those_who_finished() -> None:
    """Both ask for 50 tokens; requests of tenant ``chat`` have been ending after 2, those of ``essay`` after 30."""
    for learned, first in ((False, "essay"), (True, "chat")):
        it = lab(config(max_running=1, use="shortest", options={"mode": "remaining"}), num_blocks=200)
        if learned:
            for index in range(6):
                tenant, length = ("chat", 2) if index % 2 else ("essay", 30)
                it.sim.at(0.0, submit(f"{tenant}{index}", 8, 50, tenant=tenant, forced_length=length))
        it.sim.at(150.0, submit("busy", 8, 5, tenant="other"))
        it.sim.at(151.5, submit("essay", 8, 50, tenant="essay"), submit("chat", 8, 50, tenant="chat"))
        it.sim.run()
        assert starts(it)[-2] == first


def test_what_was_learned_survives_new_options() -> None:
    it = lab(config(max_running=1, use="shortest", options={"mode": "remaining"}))
    it.sim.at(0.0, submit("a", 8, 50, forced_length=3))
    it.sim.at(20.0, Swap(SchedulerConfig(use="shortest", options={"mode": "remaining", "victims": "random"})))
    it.sim.run()
    assert it.host.planner.guard.policy.export_state() == {"learned": [["default", 4, 3]]}


def cold_start(mode: str) -> int | None:
    """The step in which a long prompt starts that competes with a stream of short ones through one slot."""
    it = lab(config(max_running=1, use="shortest", options={"mode": mode}))
    it.sim.at(0.0, submit("h", 2, 1))
    it.sim.at(0.5, submit("cold", 40, 1))
    for index in range(120):
        it.sim.at(0.6 + index, submit(f"h{index}", 2, 1))
    it.sim.run(until=110.0)
    steps = [plan.step for plan in it.plans for started in plan.started if started.rid == "cold"]
    return steps[0] if steps else None


def test_hrrn_bounds_the_wait_of_long_prompts() -> None:
    """Invariant 96: an old request eventually outranks new ones; by length alone it never does."""
    assert cold_start("prefill") is None
    start = cold_start("hrrn")
    assert start is not None and 5 < start < 100


def test_hrrn_is_shortest_first_for_the_same_wait() -> None:
    it = lab(config(max_running=1, use="shortest", options={"mode": "hrrn"}))
    it.sim.at(0.0, submit("first", 4, 4))
    it.sim.at(0.5, *(submit(f"n{size}", size, 1) for size in (23, 5, 17, 2)))
    it.sim.run()
    assert starts(it) == ["first", "n2", "n5", "n17", "n23"]


def test_mlfq_serves_those_who_got_least() -> None:
    """A long generation sinks and makes way for short newcomers; a long prompt joins the level of its length."""
    it = lab(config(max_running=1, use="mlfq", options={"quantum": 8, "growth": 2}))
    it.sim.at(0.0, submit("long", 4, 30))
    it.sim.at(1.5, submit("early", 4, 2))
    it.sim.at(10.5, submit("prompt", 20, 2), submit("short", 4, 2))
    it.sim.run()
    assert starts(it)[:3] == ["long", "early", "long"]
    assert preempted(it)[0] == "long"
    order = starts(it)
    assert order.index("short") < order.index("prompt")


def test_mlfq_levels_grow() -> None:
    """Levels of 8, 16 and 32 tokens, the last without an end."""
    policy = Mlfq(Options(quantum=8, growth=2, levels=4), PolicyContext(8, 1, 8, 4))
    sizes = (1, 8, 9, 24, 25, 56, 57, 5000)
    levels = [policy.rank(SimpleNamespace(num_tokens=size)) for size in sizes]  # type: ignore[arg-type]
    assert levels == [0, 0, 1, 1, 2, 2, 3, 3]
