"""Whatever a policy answers, the requests end once with the right text; the nonsense is counted."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import Lab, config, lab, submit

from mainspring.core.config import SchedulerConfig
from mainspring.core.messages import Cancel, FinishReason, Note, Pause, Swap
from mainspring.core.policy import Decision, SchedulerPolicy
from mainspring.plugins.testing.fake_executor import expected_ids


class Odd:
    """An object that refuses to be compared or hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: object) -> bool:
        raise ValueError("no order")

    def __eq__(self, other: object) -> bool:
        raise ValueError("no equality")


async def coroutine(*arguments: Any) -> None: ...


def endless() -> Iterator[str]:
    while True:
        yield "r0"


def raises(error: type[BaseException]) -> Any:
    def hook(*arguments: Any) -> Any:
        raise error("on purpose")

    return hook


NONSENSE: list[Any] = [True, 5, 1.5, math.nan, "text", b"x", [[1]], {1: 2}, {"r0": "x"}, object(), Odd(), -1]
HOOKS = ["admit", "bucket", "bucket_key", "waiting_key", "order_waiting", "split_budget", "select_victims", "on_event"]
HOOKS += ["reserve", "schedule"]


def run(**hooks: Any) -> Lab:
    """Traffic under pressure with a policy whose class has these hooks."""
    if "bucket_key" in hooks:
        hooks["bucket"] = lambda self, request: request.tenant
    made = type("Nonsense", (SchedulerPolicy,), hooks)
    it = lab(config(4, token_budget=24, max_running=6), num_blocks=24)
    guard = it.host.planner.guard
    guard._use(made(None, guard.policy.context), "nonsense")
    for index in range(12):
        it.sim.at(index * 1.3, submit(f"r{index}", tuple(range(index + 2, index + 14)), 9, tenant=f"t{index % 3}"))
    it.sim.at(6.0, Cancel("r3"))
    it.sim.run(max_events=5000)
    ends = it.ends()
    assert len(ends) == 12
    for index in range(12):
        ids = it.outputs()[f"r{index}"]
        assert ids == expected_ids(tuple(range(index + 2, index + 14)), len(ids))
    it.assert_empty()
    return it


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("answer", NONSENSE, ids=lambda answer: type(answer).__name__ + str(answer)[:6])
def test_wrong_kinds_of_answer(hook: str, answer: Any) -> None:
    """Invariants 128 and 129."""
    it = run(**{hook: lambda *arguments: answer})
    if hook != "admit":
        reasons = {end.reason for end in it.ends().values()}
        assert reasons <= {FinishReason.LENGTH, FinishReason.CANCELLED}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit, StopIteration])
def test_whatever_is_raised_costs_one_answer(hook: str, error: type[BaseException]) -> None:
    it = run(**{hook: raises(error)})
    assert it.host.stats()["policy_faults"] > 0
    assert sum(end.reason is FinishReason.LENGTH for end in it.ends().values()) == 11


@pytest.mark.parametrize("hook", HOOKS)
def test_a_coroutine_is_no_answer(hook: str) -> None:
    it = run(**{hook: coroutine})
    assert it.host.stats()["policy_faults"] > 0


@pytest.mark.parametrize(
    "decision",
    [
        Decision((), reasons=None),  # type: ignore[arg-type]
        Decision((), wake_at=math.inf),
        Decision((), wake_at=-1.0),
        Decision((), wake_at="soon"),  # type: ignore[arg-type]
        Decision((), padding=endless()),  # type: ignore[arg-type]
        Decision([("r0", True)]),
        Decision([("r0", 1), ("r0", 1)]),
        Decision([("nobody", 1)]),
        Decision([("r0", 10**9)]),
        Decision((), preempt=["nobody"]),
        Decision((), preempt="r0"),
        Decision(3),  # type: ignore[arg-type]
    ],
    ids=range(12),
)
def test_wrong_decisions(decision: Decision) -> None:
    it = run(schedule=lambda *arguments: decision)
    assert it.host.stats()["policy_faults"] > 0


def test_a_decision_whose_rows_are_lazy_is_as_good_as_another() -> None:
    def schedule(self: Any, view: Any) -> Decision:
        return Decision((one.rid, 1) for one in [*view.running, *view.waiting][:6] if one.num_remaining_tokens)  # type: ignore[arg-type]

    it = run(schedule=schedule)
    assert sum(end.reason is FinishReason.LENGTH for end in it.ends().values()) == 11


@pytest.mark.parametrize("seed", range(6))
def test_keys_without_a_sensible_order(seed: int) -> None:
    """NaN, mixed types and keys that change behind the queue's back: served all the same."""
    rng = random.Random(seed)
    run(waiting_key=lambda *arguments: rng.choice([math.nan, 1.0, 2.0, "x", (1, "a"), None]))
    kept = [0]

    def changing(self: Any, request: Any, now: float) -> list[int]:
        kept[0] = rng.randrange(9)
        return kept

    run(waiting_key=changing)


def test_a_failed_swap_changes_nothing() -> None:
    """Invariant 131, also when the new policy's queue cannot be built."""
    it = lab(config(4, token_budget=8))
    it.sim.at(0.0, submit("A", 30, 6), submit("B", 30, 6))
    it.sim.at(1.5, Swap(SchedulerConfig(use="tests.host.test_nonsense:Unbuildable", token_budget=4)))
    it.sim.run()
    notes = [message for message in it.log if isinstance(message, Note)]
    assert [note.point for note in notes] == ["scheduler.swap_failed"]
    assert "no room" in notes[0].facts["error"]
    assert it.host.planner.name == "fcfs"
    assert it.host.config.token_budget == 8
    assert len(it.ends()) == 2


class Unbuildable(SchedulerPolicy):
    """Refuses to take over."""

    def import_state(self, policy: str, state: Any) -> None:
        raise RuntimeError("no room")


def test_an_id_is_not_taken_again_before_it_is_gone() -> None:
    """E-02: with its cancelled predecessor's step in flight the id is refused; afterwards it is free."""
    it = lab(config(4))
    it.sim.at(0.0, submit("A", (1, 2, 3), 10))
    it.sim.at(0.5, Cancel("A"), submit("A", (7, 8, 9), 10))
    it.sim.run(until=0.6)
    terminals = [row.finish for emit in it.emits() for row in emit.rows if row.finish]
    assert [end.reason for end in terminals] == [FinishReason.CANCELLED, FinishReason.ERROR]
    assert terminals[1].failure is not None
    assert terminals[1].failure.code == "duplicate_id"
    it.sim.emitted.clear()
    it.sim.at(5.0, submit("A", (7, 8, 9), 4))
    it.sim.run()
    assert it.outputs()["A"] == expected_ids((7, 8, 9), 4)


def test_a_waiting_fork_does_not_cost_others_their_life() -> None:
    """Forks that have not started give up the blocks they share before anybody is sent away."""
    it = lab(config(2, "prefix"), num_blocks=10)
    it.sim.at(0.0, submit("A", 14, 6))
    it.sim.at(1.5, submit("C", (), 2, parent="A"), Pause(("C",)))
    it.sim.at(2.2, submit("D", tuple(range(700, 708)), 4))
    it.sim.run()
    assert it.ends()["D"].reason is FinishReason.LENGTH
    assert it.outputs()["D"] == expected_ids(tuple(range(700, 708)), 4)
